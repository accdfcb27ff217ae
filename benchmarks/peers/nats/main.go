// Command load keeps a number of transactions unanswered at a JetStream stream with three replicas, and prints how
// many were acknowledged and how long each waited, as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	stream  = "transactions"
	subject = "transactions.all"
)

// result is what the benchmark reads.
type result struct {
	Count       int       `json:"count"`
	TookS       float64   `json:"took_s"`
	LatenciesMs []float64 `json:"latencies_ms"`
}

func main() {
	log.SetFlags(0)
	urls := flag.String("servers", "", "NAME=URL of each server, with commas between")
	create := flag.Bool("create", false, "make the stream, and nothing else")
	outstanding := flag.Int("outstanding", 1, "transactions unanswered at a time")
	seconds := flag.Float64("seconds", 5, "how long")
	size := flag.Int("size", 100, "bytes of a transaction")
	accounts := flag.Int("accounts", 0, "withdraw from so many accounts; 0: append without a condition")
	flag.Parse()
	servers, err := parse(*urls)
	if err != nil {
		log.Fatal(err)
	}
	if *create {
		if err := createStream(servers); err != nil {
			log.Fatal(err)
		}
		return
	}
	body := make([]byte, *size)
	var done result
	if *accounts > 0 {
		done, err = withdrawals(servers, *accounts, *outstanding, *seconds, body)
	} else {
		done, err = appends(servers, *outstanding, *seconds, body)
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(done)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// parse takes "a=nats://127.0.0.1:1,b=nats://127.0.0.1:2" apart.
func parse(text string) (map[string]string, error) {
	servers := map[string]string{}
	for _, pair := range strings.Split(text, ",") {
		name, url, found := strings.Cut(pair, "=")
		if !found {
			return nil, fmt.Errorf("%q is not NAME=URL", pair)
		}
		servers[name] = url
	}
	return servers, nil
}

func connect(url string, outstanding int) (*nats.Conn, jetstream.JetStream, error) {
	connection, err := nats.Connect(url, nats.IgnoreDiscoveredServers())
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(
		connection,
		jetstream.WithPublishAsyncMaxPending(2*outstanding),
		jetstream.WithPublishAsyncTimeout(20*time.Second),
	)
	return connection, js, err
}

func anyOf(servers map[string]string) string {
	for _, url := range servers {
		return url
	}
	return ""
}

// createStream makes the stream, again and again until the cluster has chosen a leader and all three replicas follow.
func createStream(servers map[string]string) error {
	connection, js, err := connect(anyOf(servers), 1)
	if err != nil {
		return err
	}
	defer connection.Close()
	deadline := time.Now().Add(45 * time.Second)
	for {
		err := tryCreate(js)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(300 * time.Millisecond)
	}
}

func tryCreate(js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	made, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name:       stream,
		Subjects:   []string{stream + ".*"},
		Storage:    jetstream.FileStorage,
		Replicas:   3,
		Duplicates: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	info, err := made.Info(ctx)
	if err != nil {
		return err
	}
	if info.Cluster == nil || info.Cluster.Leader == "" || len(info.Cluster.Replicas) != 2 {
		return errors.New("the stream has no leader with two followers yet")
	}
	for _, replica := range info.Cluster.Replicas {
		if !replica.Current || replica.Offline {
			return fmt.Errorf("replica %s is not current yet", replica.Name)
		}
	}
	return nil
}

// atLeader connects to the server that leads the stream: through another one each transaction makes one hop more.
func atLeader(servers map[string]string, outstanding int) (*nats.Conn, jetstream.JetStream, error) {
	connection, js, err := connect(anyOf(servers), 1)
	if err != nil {
		return nil, nil, err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	found, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, nil, err
	}
	leader := found.CachedInfo().Cluster.Leader
	url, known := servers[leader]
	if !known {
		return nil, nil, fmt.Errorf("the stream's leader is %q, which is none of the servers", leader)
	}
	return connect(url, outstanding)
}

// sent is a transaction on its way.
type sent struct {
	at     time.Time
	future jetstream.PubAckFuture
}

// appends waits for the oldest transaction and sends another one: they are acknowledged in their order, and one
// goroutine costs the processors less than one for each that is outstanding.
func appends(servers map[string]string, outstanding int, seconds float64, body []byte) (result, error) {
	done := result{}
	connection, js, err := atLeader(servers, outstanding)
	if err != nil {
		return done, err
	}
	defer connection.Close()
	if err := appendOne(js, body); err != nil {
		return done, err
	}
	began := time.Now()
	until := began.Add(time.Duration(seconds * float64(time.Second)))
	window := make([]sent, outstanding)
	unanswered := 0
	for number := 0; ; number++ {
		oldest := &window[number%outstanding]
		if oldest.future != nil {
			if err := acknowledged(oldest.future); err != nil {
				return done, err
			}
			done.Count++
			done.LatenciesMs = append(done.LatenciesMs, time.Since(oldest.at).Seconds()*1e3)
			oldest.future = nil
			unanswered--
		}
		if now := time.Now(); now.Before(until) {
			future, err := js.PublishAsync(subject, body)
			if err != nil {
				return done, err
			}
			*oldest = sent{now, future}
			unanswered++
		} else if unanswered == 0 {
			break
		}
	}
	done.TookS = time.Since(began).Seconds()
	return done, nil
}

// appendOne sends one transaction and waits for its acknowledgement.
func appendOne(js jetstream.JetStream, body []byte) error {
	future, err := js.PublishAsync(subject, body)
	if err != nil {
		return err
	}
	return acknowledged(future)
}

func acknowledged(future jetstream.PubAckFuture) error {
	select {
	case <-future.Ok():
		return nil
	case err := <-future.Err():
		return err
	}
}
