package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// state is what the client knows of an account: its balance, and the sequence of its last transaction.
type state struct {
	balance  int
	sequence uint64
}

// bank is a client's view of its accounts. Each is a subject, and an append to it is refused unless the last
// transaction of the subject is the one that the balance was read from.
type bank struct {
	js       jetstream.JetStream
	stream   jetstream.Stream
	body     []byte
	subjects []string
	mutex    sync.Mutex
	accounts []state
}

// pauseMost is about what one append takes.
const pauseMost = 2 * time.Millisecond

const opening = 1_000_000_000

func newBank(js jetstream.JetStream, found jetstream.Stream, body []byte, count int) *bank {
	made := &bank{js: js, stream: found, body: body, subjects: make([]string, count), accounts: make([]state, count)}
	for number := range count {
		made.subjects[number] = fmt.Sprintf("%s.%d-%d", stream, os.Getpid(), number)
		made.accounts[number].balance = opening
	}
	return made
}

func (b *bank) known(account int) state {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.accounts[account]
}

// learn keeps the newer of what is known and what was just learnt.
func (b *bank) learn(account int, learnt state) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if learnt.sequence > b.accounts[account].sequence {
		b.accounts[account] = learnt
	}
}

// encode makes a transaction that begins with the balance after it, for whoever has to read it.
func (b *bank) encode(balance int) []byte {
	data := bytes.Clone(b.body)
	binary.BigEndian.PutUint64(data, uint64(balance))
	return data
}

// withdraw reads, checks and appends, again after each conflict, until it is committed.
func (b *bank) withdraw(ctx context.Context, account int) error {
	for {
		now := b.known(account)
		if now.balance < 1 {
			return errors.New("insufficient funds")
		}
		message := &nats.Msg{Subject: b.subjects[account], Data: b.encode(now.balance - 1)}
		ack, err := b.js.PublishMsg(ctx, message, jetstream.WithExpectLastSequencePerSubject(now.sequence))
		if err == nil {
			b.learn(account, state{now.balance - 1, ack.Sequence})
			return nil
		}
		if !isConflict(err) {
			return err
		}
		if err := b.refresh(ctx, account, now); err != nil {
			return err
		}
	}
}

// refresh asks for the account's last transaction, unless another goroutine has learnt of it in the meantime. Nothing
// newer means that the conflict is with one that is on its way: a pause leaves the processors to it.
func (b *bank) refresh(ctx context.Context, account int, old state) error {
	if b.known(account).sequence > old.sequence {
		return nil
	}
	last, err := b.stream.GetLastMsgForSubject(ctx, b.subjects[account])
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		return err
	}
	if err == nil && last.Sequence > old.sequence {
		b.learn(account, state{int(binary.BigEndian.Uint64(last.Data)), last.Sequence})
		return nil
	}
	time.Sleep(time.Duration(rand.Int64N(int64(pauseMost))))
	return nil
}

func isConflict(err error) bool {
	var told *jetstream.APIError
	return errors.As(err, &told) && (told.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		told.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// withdrawals has so many goroutines withdraw from accounts at random, and measures each until it is committed.
func withdrawals(servers map[string]string, accounts, outstanding int, seconds float64, body []byte) (result, error) {
	done := result{}
	connection, js, err := atLeader(servers, outstanding)
	if err != nil {
		return done, err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration((seconds+30)*float64(time.Second)))
	defer cancel()
	found, err := js.Stream(ctx, stream)
	if err != nil {
		return done, err
	}
	bank := newBank(js, found, body, accounts)
	began := time.Now()
	until := began.Add(time.Duration(seconds * float64(time.Second)))
	latencies := make([][]float64, outstanding)
	failures := make([]error, outstanding)
	var workers sync.WaitGroup
	for number := range outstanding {
		workers.Go(func() {
			for failures[number] == nil && time.Now().Before(until) {
				started := time.Now()
				failures[number] = bank.withdraw(ctx, rand.IntN(accounts))
				latencies[number] = append(latencies[number], time.Since(started).Seconds()*1e3)
			}
		})
	}
	workers.Wait()
	done.TookS = time.Since(began).Seconds()
	for _, some := range latencies {
		done.Count += len(some)
		done.LatenciesMs = append(done.LatenciesMs, some...)
	}
	return done, errors.Join(failures...)
}
