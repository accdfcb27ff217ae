/* The target, as in reception.py. Part of delivery.pml. */

inline apply(s, entry) {
    newest = NUMBER(s) >= latest;
    CHECK(newest);
    in_order = entry == applied + 1;
    assert(in_order);
    applied = entry
}

inline say(s, what, one, other) {
    if
    :: !given_up[s] -> to_player[s]!what(one, other)
    :: else
    fi
}

/* The target's process dies, with all that is under way to it; every player hears that its stream has ended. */
inline die() {
    i = 0;
    do
    :: i < STREAMS ->
        accepted[i] = false;
        refusing[i] = false;
        do
        :: len(to_target[i]) > 0 -> to_target[i]?_(_, _, _)
        :: else -> break
        od;
        i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < PLAYERS ->
        if
        :: player[i].stream != down -> close(i)
        :: else
        fi;
        i++
    :: else -> break
    od
}

/* The next message of a stream. Each is one step, because a target reads the fence and the id and writes both in one
   transaction of its database; so several processes of one target may do this side by side. */
inline arrive(s) {
    to_target[s]?kind(previous, first, second);
    if
    :: kind == hello ->
        if
        :: ACCEPTS(s) ->
            kept_epoch = epoch_of[s];
            kept_term = term_of[s];
            latest = (NUMBER(s) > latest -> NUMBER(s) : latest);
            accepted[s] = true;
            say(s, connected, 0, applied)
        :: else -> say(s, fenced, kept_epoch, kept_term)
        fi
    :: kind == batch && !accepted[s] /* It goes nowhere. */
    :: kind == batch && accepted[s] ->
        if
        :: !MATCHES(s) -> say(s, fenced, kept_epoch, kept_term)
        :: MATCHES(s) && FOLLOWS(previous) ->
            refusing[s] = false;
            apply(s, first);
            if
            :: second != 0 -> apply(s, second)
            :: else
            fi;
            say(s, acknowledged, 0, applied)
        :: MATCHES(s) && !FOLLOWS(previous) && refusing[s] /* It is sent again. */
        :: MATCHES(s) && !FOLLOWS(previous) && !refusing[s] ->
            no_gap = false;
            CHECK(no_gap);
            /* It ends the stream. */
            accepted[s] = false;
            if
            :: !given_up[s] -> close(player_of[s])
            :: else
            fi
        fi
    fi
}
