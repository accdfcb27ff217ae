/* Exactly-once delivery of one partition to one target, as a text for Spin.

It says again, by itself, what the decisions in src/polonaise/player/protocol say in Python, so that another checker
sees them, with its own idea of fairness. Nothing compares the two: a change there is made here as well. What the words
mean is in docs/glossary.md. Transactions are 1 to MESSAGES here, all for the target, and 0 stands for "none yet".

In every state:
    in_order   the target applies each transaction once, in order, and leaves none out
    newest     it applies nothing of a stream after it has accepted a later one
    no_gap     it is sent nothing that does not follow what it has applied
    rising     what a queue gives is above what it has given
    in_read    the answer to a read lies within it
    in_log     what the target tells is in the log
    was_sent   what it acknowledges or refuses was sent to it
and where nothing can happen any more, everything has arrived: else Spin finds an "invalid end state". With LIVENESS:
everything arrives in every run that is fair.

Debian's spin and gcc check it, in an empty directory:

    spin -a -DMESSAGES=4 -DFAILURES=1 -DPLAYERS=2 …/spec/delivery.pml
    gcc -O2 -w -DSAFETY -DCOLLAPSE -DVECTORSZ=4096 -o pan pan.c && ./pan -m100000

    spin -a -DMESSAGES=4 -DFAILURES=2 -DLIVENESS …/spec/delivery.pml
    gcc -O2 -w -DNFAIR=4 -DCOLLAPSE -DVECTORSZ=4096 -o pan pan.c && ./pan -a -f -m100000

and `./pan -r delivery.pml.trail` shows the way to an error. tests/model/test_spec.py does it within small bounds, and
with each of these changes, which have to be noticed:

    NO_TERM               a fence is an epoch alone
    NO_EPOCH              a fence is a term alone
    NO_FENCE_ON_STREAMS   the target accepts any stream
    NO_FENCE_ON_MESSAGES  the target does not compare the fence of messages
    NO_CHAIN              the target does not compare the previous id; the fence is enough, so this alone breaks nothing
    OLD_EVENTS            what comes of a stream that was given up counts for the present one
    OLD_READS             the answer to a read for an earlier stream counts for the present one
    JOIN_LATE             the main stream is kept from the last read's answer on, not from when its end was fixed
    KEEP_OVERFLOW         what has overflowed stays in the queue, and is read as well
    FORGET_OVERFLOW       what has overflowed is not read
    KEEP_QUEUE            what waits for a stream outlives it
    PASS_OVER_REFUSED     what the target has refused is not sent again
    STAY_FETCHED          a target that is caught up does not become normal

ONLY_APPLIED leaves out all that is checked by name but in_order: then the chain of ids is enough, without any fence.

Not in it: several targets or partitions, dummies, reads that fail, trimmed logs, bounds of bytes, time. The model in
proving/polonaise_proving/model/player has the first two. */

#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef FAILURES
#define FAILURES 1 /* Streams that break, and deaths of the target, together. */
#endif
#ifndef PLAYERS
#define PLAYERS 1
#endif
#ifndef REFUSALS
#define REFUSALS 0
#endif
#ifndef WINDOW
#define WINDOW 2 /* Batches that are sent and not acknowledged; production counts bytes. */
#endif
#ifndef QUEUE
#define QUEUE 1 /* PlayerSettings.queue_entries_max */
#endif
#ifndef JOIN
#define JOIN 1 /* PlayerSettings.join_transactions */
#endif
#ifndef RECOVERY
#define RECOVERY 2 /* Entries; production counts bytes: recovery_bytes_max. */
#endif

/* The death of the target ends a stream of each player; more are never needed. */
#define STREAMS (PLAYERS * (FAILURES + 1))
#define NOTHING 255

#ifdef NO_TERM
#define ACCEPTS(s) (epoch_of[s] >= kept_epoch)
#define MATCHES(s) (epoch_of[s] == kept_epoch)
#elif defined(NO_EPOCH)
#define ACCEPTS(s) (term_of[s] >= kept_term) /* A new player counts from 1 again, and has to get in. */
#define MATCHES(s) (term_of[s] == kept_term)
#else
#define ACCEPTS(s) (epoch_of[s] > kept_epoch || (epoch_of[s] == kept_epoch && term_of[s] > kept_term))
#define MATCHES(s) (epoch_of[s] == kept_epoch && term_of[s] == kept_term)
#endif
#ifdef NO_FENCE_ON_STREAMS
#undef ACCEPTS
#define ACCEPTS(s) true
#endif
#ifdef NO_FENCE_ON_MESSAGES
#undef MATCHES
#define MATCHES(s) true
#endif
#ifdef NO_CHAIN
#define FOLLOWS(previous) true
#else
#define FOLLOWS(previous) (previous == applied)
#endif
#ifdef OLD_EVENTS
#define OF_PRESENT(p, s) true
#else
#define OF_PRESENT(p, s) (player[p].term == term_of[s])
#endif
#ifdef ONLY_APPLIED
#define CHECK(promise) skip
#else
#define CHECK(promise) assert(promise)
#endif

mtype = { hello, batch };                             /* What a player sends. */
mtype = { connected, fenced, acknowledged, refused }; /* What a target answers. */
mtype = { down, opening, up };                        /* StreamState */
mtype = { S, RF, FC, N };                             /* QueueState */

byte committed; /* The log: transactions 1 to this one. */

/* What the target keeps durably, in its database. */
byte kept_epoch;
byte kept_term;
byte applied;

/* Streams: each has its number, by the order in which they were opened, and two ways that keep the order. A batch is
   the previous id and one or two entries. */
byte opened;
byte player_of[STREAMS];
byte epoch_of[STREAMS];
byte term_of[STREAMS];
bool given_up[STREAMS]; /* By its player. What was sent may still arrive; nothing comes back any more. */
bool accepted[STREAMS]; /* The target's process serves it: it has a Reception. */
bool refusing[STREAMS]; /* Reception._refused */
chan to_target[STREAMS] = [WINDOW * (REFUSALS + 1) + 1] of { mtype, byte, byte, byte };
chan to_player[STREAMS] = [WINDOW * (REFUSALS + 1) + 1] of { mtype, byte, byte };

/* A player with its only partition and target: ActivePlayer, MainStream, TargetStream and TargetQueue in one. */
typedef PlayerState {
    bool superseded;
    bool begun; /* The main stream has begun, and is at `current`. */
    byte current;
    byte mark;
    byte term;
    mtype stream;
    byte number; /* Of the present stream. */
    byte unproved;
    byte halted; /* The last id that the target had applied when it refused an entry, or NOTHING. */
    mtype queue;
    byte sent;
    byte skipped_to;
    byte covered;
    byte joined_at;
    bool reading;
    byte read_first;
    byte read_last;
}
PlayerState player[PLAYERS];
chan normal[PLAYERS] = [MESSAGES + 1] of { byte };
chan catchup[PLAYERS] = [MESSAGES + 1] of { byte };
chan in_flight[PLAYERS] = [WINDOW] of { byte }; /* The last ids of batches that are sent and not acknowledged. */
chan old_reads[PLAYERS] = [FAILURES + REFUSALS + 1] of { byte }; /* Reads for earlier streams, by their first id. */

byte failures = FAILURES;
byte refusals = REFUSALS;

byte latest; /* The highest stream that the target ever accepted; neither side looks at it. */

/* Used within one step, and no part of a state. */
hidden byte i, first, second, previous, last, told_epoch, told_term;
hidden mtype kind;
hidden byte in_order, newest, no_gap, rising, in_read, in_log, was_sent;

#define NUMBER(s) (epoch_of[s] * 16 + term_of[s])

#include "targetqueue.pml"
#include "activeplayer.pml"
#include "reception.pml"

#define MAY_APPLY(s) (accepted[s] && MATCHES(s) && to_target[s]?[batch, eval(applied), _, _])

/* A stream: the network, the target's side of it, and what the player is told. A step that ends with `skip` does so
   because Spin wants no loop or choice at the end of a `d_step`. */
proctype Stream(byte s) {
end:
    do
    :: d_step { len(to_target[s]) > 0 -> arrive(s); skip }
    :: d_step { len(to_player[s]) > 0 -> answer(player_of[s], s); skip }
    :: d_step { /* The stream breaks: the player hears of it. What is under way may be lost with it, or come later. */
        failures > 0 && s < opened && !given_up[s] ->
        failures--;
        close(player_of[s]);
        skip
       }
    :: d_step { /* The target can't apply the last entry of a batch. */
        refusals > 0 && MAY_APPLY(s) ->
        refusals--;
        to_target[s]?kind(previous, first, second);
        if
        :: second != 0 -> apply(s, first)
        :: else
        fi;
        refusing[s] = true;
        say(s, refused, 0, applied);
        skip
       }
    :: d_step { /* The target dies when it has applied the first entry of a batch. */
        failures > 0 && MAY_APPLY(s) ->
        failures--;
        to_target[s]?kind(previous, first, second);
        apply(s, first);
        die();
        skip
       }
    od
}

/* The target's process dies between two messages. */
proctype Target() {
end:
    do
    :: d_step { failures > 0 && opened > 0 -> failures--; die(); skip }
    od
}

/* The log. It does not end before everything has arrived: until then, a state where nothing can happen is an error. */
init {
    atomic {
        byte n = 0;
        do
        :: n < PLAYERS ->
            player[n].stream = down;
            player[n].queue = S;
            player[n].unproved = NOTHING;
            player[n].halted = NOTHING;
            player[n].joined_at = NOTHING;
            run Player(n);
            n++
        :: else -> break
        od;
        n = 0;
        do
        :: n < STREAMS -> run Stream(n); n++
        :: else -> break
        od;
        run Target();
        n = 0
    }
    do
    :: committed < MESSAGES -> committed++
    :: committed == MESSAGES -> break
    od;
    applied == MESSAGES
}

#ifdef LIVENESS
/* There are only so many failures, so in every run they come to an end. */
ltl everything_arrives { <> (applied == MESSAGES) }
#endif
