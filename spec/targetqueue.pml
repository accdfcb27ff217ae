/* The queue of the target, as in targetqueue.py. Part of delivery.pml. */

#ifdef JOIN_LATE
#define JOINED(p) (player[p].queue == FC || player[p].queue == N)
#else
#define JOINED(p) (player[p].queue == FC || player[p].queue == N || \
                   (player[p].queue == RF && player[p].joined_at != NOTHING))
#endif
#define WAITS(p) (len(catchup[p]) > 0 || (player[p].queue == N && len(normal[p]) > 0))

inline become_normal(p) {
#ifndef STAY_FETCHED
    player[p].joined_at = NOTHING;
    player[p].queue = N
#else
    skip
#endif
}

inline drop(queue) {
    do
    :: len(queue) > 0 -> queue?_
    :: else -> break
    od
}

inline resume(p, after) {
    player[p].sent = after;
    player[p].skipped_to = after;
    player[p].covered = after;
    player[p].joined_at = NOTHING;
    if
    :: player[p].covered >= player[p].current -> player[p].queue = N
    :: else -> player[p].queue = RF
    fi
}

inline suspend(p) {
#ifndef KEEP_QUEUE
    drop(normal[p]);
    drop(catchup[p]);
#endif
    drop(in_flight[p]);
    if
    :: player[p].reading -> old_reads[p]!player[p].read_first
    :: else
    fi;
    player[p].reading = false;
    player[p].queue = S;
    /* `resume` sets these; until then one value for all makes fewer states. */
    player[p].sent = 0;
    player[p].skipped_to = 0;
    player[p].covered = 0;
    player[p].joined_at = NOTHING;
    player[p].read_first = 0;
    player[p].read_last = 0
}

inline push(p, id) {
    if
    :: JOINED(p) && id > player[p].skipped_to ->
        normal[p]!id;
        if
        :: len(normal[p]) > QUEUE && len(normal[p]) > 1 -> leave_main_stream(p)
        :: else
        fi
    :: else
    fi
}

inline leave_main_stream(p) {
    if
    :: player[p].queue == N ->
        /* The first that is queued is looked at, not taken. */
#ifdef FORGET_OVERFLOW
        player[p].covered = player[p].current
#else
        normal[p]?<first>;
        player[p].covered = first - 1
#endif
    :: else
    fi;
#ifndef KEEP_OVERFLOW
    drop(normal[p]);
#endif
    player[p].joined_at = NOTHING;
    player[p].queue = RF
}

/* next_read. The id at which the target joins is fixed in the step in which the queue begins to keep what the main
   stream brings. */
inline advance(p) {
    if
    :: player[p].begun && player[p].queue == RF && !player[p].reading && len(catchup[p]) < RECOVERY ->
        if
        :: player[p].joined_at == NOTHING && player[p].current - player[p].covered <= JOIN ->
            player[p].joined_at = player[p].current
        :: else
        fi;
        last = (player[p].joined_at == NOTHING -> player[p].current : player[p].joined_at);
        if
        :: player[p].covered >= last ->
            player[p].queue = FC;
            if
            :: len(catchup[p]) == 0 -> become_normal(p)
            :: else
            fi
        :: else ->
            player[p].reading = true;
            player[p].read_first = player[p].covered + 1;
            player[p].read_last = last
        fi
    :: else
    fi
}

inline take(p, entry) {
    if
    :: len(catchup[p]) > 0 ->
        catchup[p]?entry;
        if
        :: player[p].queue == FC && len(catchup[p]) == 0 -> become_normal(p)
        :: else
        fi
    :: else -> normal[p]?entry
    fi
}
