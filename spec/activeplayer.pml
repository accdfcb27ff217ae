/* The player, as in activeplayer.py. Part of delivery.pml. */

/* What leaves the queue is on the stream when the step ends, under the term of this step. Production hands nothing to a
   stream that has not written what it was handed before, either: WINDOW holds back the same, so that is left out. */
inline send(p) {
    do
    :: player[p].stream == up && len(in_flight[p]) < WINDOW && WAITS(p) ->
        second = 0;
        take(p, first);
        if
        :: WAITS(p) -> take(p, second)
        :: else
        fi;
        rising = first > player[p].sent && (second == 0 || second > first);
        CHECK(rising);
        to_target[player[p].number]!batch(player[p].sent, first, second);
        player[p].sent = (second == 0 -> first : second);
        in_flight[p]!player[p].sent;
        advance(p)
    :: else -> break
    od
}

inline close(p) {
    suspend(p);
    player[p].unproved = NOTHING;
    player[p].halted = NOTHING;
    player[p].stream = down;
    given_up[player[p].number] = true
}

/* With one target, the main stream begins behind what that has applied. */
inline proved(p, id) {
    if
    :: !player[p].begun ->
        player[p].begun = true;
        player[p].current = id
    :: else
    fi;
    resume(p, id);
    advance(p)
}

inline told(p, id) {
    if
    :: id <= player[p].mark -> proved(p, id)
    :: else -> player[p].unproved = id
    fi
}

/* One answer of the target. Those of a stream that was given up have an older term, and change nothing. */
inline answer(p, s) {
    to_player[s]?kind(told_epoch, told_term);
    if
    :: player[p].superseded || !OF_PRESENT(p, s) || player[p].stream == down
    :: else ->
        if
        :: kind == connected && player[p].stream == opening ->
            player[p].stream = up;
            told(p, told_term);
            send(p)
        :: kind == fenced && told_epoch > epoch_of[s] ->
            close(p);
            player[p].superseded = true
        :: kind == fenced && told_epoch <= epoch_of[s] ->
            player[p].term = (told_term > player[p].term -> told_term : player[p].term);
            close(p)
        :: kind == acknowledged && player[p].stream == up && player[p].queue != S ->
            was_sent = told_term <= player[p].sent;
            CHECK(was_sent);
            do
            :: len(in_flight[p]) > 0 ->
                in_flight[p]?<last>;
                if
                :: last <= told_term -> in_flight[p]?_
                :: else -> break
                fi
            :: else -> break
            od;
            send(p)
        :: kind == refused && player[p].stream == up && player[p].queue != S ->
            was_sent = told_term < player[p].sent;
            CHECK(was_sent);
#ifdef PASS_OVER_REFUSED
            player[p].halted = player[p].sent;
#else
            player[p].halted = told_term;
#endif
            suspend(p)
        :: else
        fi
    fi
}

inline recovered(p, through) {
    i = player[p].read_first;
    player[p].reading = false;
    player[p].covered = through;
    do
    :: i <= through -> catchup[p]!i; i++
    :: else -> break
    od;
    player[p].read_first = 0;
    player[p].read_last = 0;
    advance(p);
    send(p)
}

/* A player: its events but for those that streams bring. Each is one step, because ActivePlayer handles an event and
   returns its effects without awaiting anything, and its shell carries them out before the next. The players are there
   from the beginning: one that does nothing for a while has not been elected yet, and one that does nothing any more is
   dead. Time is left out: every pause may be over at once. */
proctype Player(byte p) {
end:
    do
    :: d_step { /* tick: a stream is opened */
        !player[p].superseded && player[p].stream == down && opened < STREAMS ->
        player[p].term++;
        player[p].stream = opening;
        player[p].number = opened;
        player_of[opened] = p;
        epoch_of[opened] = p + 1;
        term_of[opened] = player[p].term;
        to_target[opened]!hello(0, 0, 0);
        opened++
       }
    :: d_step { /* mark_told: asked and answered in one step, some time after the target has told what it has applied */
        !player[p].superseded && player[p].unproved != NOTHING ->
        player[p].mark = committed;
        in_log = player[p].unproved <= committed;
        CHECK(in_log);
        first = player[p].unproved;
        player[p].unproved = NOTHING;
        proved(p, first);
        send(p);
        skip
       }
    :: d_step { /* fetched: one at a time, which is the same as that nothing happens between */
        !player[p].superseded && player[p].begun && player[p].current < committed ->
        player[p].current++;
        player[p].mark = (player[p].current > player[p].mark -> player[p].current : player[p].mark);
        push(p, player[p].current);
        advance(p);
        send(p);
        skip
       }
    :: d_step { /* recovered: a read has come to its end */
        player[p].reading ->
        recovered(p, player[p].read_last);
        skip
       }
    :: d_step { /* recovered: a read has found its first entry, and is to go on */
        player[p].reading && player[p].read_first < player[p].read_last ->
        recovered(p, player[p].read_first);
        skip
       }
    :: d_step { /* recovered: the answer to a read for an earlier stream, whose number nobody waits for any more */
        len(old_reads[p]) > 0 ->
        old_reads[p]?second;
#ifdef OLD_READS
        if
        :: player[p].reading ->
            in_read = player[p].read_first <= second && second <= player[p].read_last;
            CHECK(in_read);
            catchup[p]!second;
            player[p].reading = false;
            player[p].covered = second;
            player[p].read_first = 0;
            player[p].read_last = 0;
            advance(p);
            send(p)
        :: else
        fi;
#endif
        second = 0
       }
    :: d_step { /* tick: a refused entry is tried again */
        player[p].halted != NOTHING ->
        first = player[p].halted;
        player[p].halted = NOTHING;
        told(p, first);
        send(p);
        skip
       }
    od
}
