//! Is there an order, one operation after the other, that explains what was seen? (Linearizability, after Wing and
//! Gong, with the states remembered that were tried.) An operation that had returned before another was called comes
//! before it; beyond that, any order will do.

use super::shared::{Answer, Event, Final, Progress, SharedOp, State};
use std::collections::HashSet;

/// The most that is tried.
const MOST: usize = 100_000;

/// Whether there is such an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Verdict {
    Explained,
    Impossible,
    /// There were too many to try them all.
    Undecided,
}

/// Searches for an order of the events that starts from a state and ends with what was found. What is unknown, because
/// the server was killed, may have happened, in part or not at all.
pub fn explain(start: &State, events: &[Event], found: &Final) -> Verdict {
    let overlap = |a: &Event, b: &Event| a.from <= b.to && b.from <= a.to;
    let is_looked_at =
        |event: &Event| events.iter().any(|look| matches!(look.answer, Answer::Seen { .. }) && overlap(look, event));
    let looked_at: Vec<bool> = events.iter().map(is_looked_at).collect();
    let mut tried = HashSet::new();
    let mut todo = vec![(vec![Progress::Begun; events.len()], start.clone())];
    while let Some((progress, state)) = todo.pop() {
        let is_unknown = |n: usize| events[n].answer == Answer::Unknown;
        let open = |n: &usize| progress[*n] != Progress::Over;
        // Nothing is half done in the end, also if the server was killed.
        let is_over = (0..events.len()).filter(open).all(is_unknown)
            && !progress.iter().any(|progress| matches!(progress, Progress::Counted(_)));
        if is_over && state.clone().is_final(found) {
            return Verdict::Explained;
        }
        // Nothing can come after an operation that was called when this one had returned.
        let first_end = (0..events.len()).filter(open).filter(|n| !is_unknown(*n)).map(|n| events[n].to).min();
        let mut can_be_next: Vec<usize> =
            (0..events.len()).filter(open).filter(|n| first_end.is_none_or(|end| events[*n].from <= end)).collect();
        // Those that returned first are tried first.
        can_be_next.sort_by_key(|n| std::cmp::Reverse(events[*n].to));
        let mut all = Vec::new();
        for n in can_be_next {
            let mut next = state.clone();
            let Some(mut step) = next.advance(&events[n], progress[n]) else { continue };
            // What nobody can see between its halves is done at once: that leaves fewer orders to try.
            if matches!(step, Progress::Counted(_)) && !looked_at[n] {
                let Some(last) = next.advance(&events[n], step) else { continue };
                step = last;
            }
            let mut progress = progress.clone();
            progress[n] = step;
            // What fits now, and could change nothing later either, may as well come now.
            let looks = matches!(events[n].answer, Answer::Failed(_) | Answer::Seen { .. });
            let harmless =
                step == Progress::Over && next == state && (looks || matches!(events[n].op, SharedOp::List(_)));
            if harmless {
                all.clear();
            }
            all.push((progress, next));
            if harmless {
                break;
            }
        }
        for way in all {
            if tried.insert(way.clone()) {
                todo.push(way);
            }
        }
        if tried.len() > MOST {
            return Verdict::Undecided;
        }
    }
    Verdict::Impossible
}

#[cfg(test)]
mod tests {
    use super::super::shared::{Name, initial, ops};
    use super::*;
    use nix::errno::Errno;

    const MADE: Answer = Answer::Made { ino: 7 };

    fn event(worker: u64, op: SharedOp, from: u64, to: u64, answer: Answer) -> Event {
        Event { worker, op, from, to, answer, record: 0 }
    }

    fn seen(ino: u64, links: u32) -> Answer {
        Answer::Seen { kind: libc::S_IFREG, ino, links, size: 0 }
    }

    /// Some name that is not there in the beginning.
    fn create() -> SharedOp {
        let mut state = initial();
        let all = (0..).flat_map(|seed| ops(seed, 0, 0));
        let is_new = |op: &SharedOp| {
            matches!(op, SharedOp::Create(_)) && state.advance(&event(0, *op, 0, 0, MADE), Progress::Begun).is_some()
        };
        let mut is_new = is_new;
        all.into_iter().find(|op| is_new(op)).unwrap()
    }

    fn found_after(op: SharedOp, ino: u64) -> Final {
        let SharedOp::Create(name) = op else { unreachable!() };
        let file = |ino| (seen(ino, 1), Vec::new());
        let mut found = Final::from([((0, 0), file(1)), ((1, 1), file(2))]);
        found.insert(name.key(), file(ino));
        found
    }

    #[test]
    fn one_of_two_creates_wins() {
        let op = create();
        let lost = Answer::Failed(Errno::EEXIST);
        let found = found_after(op, 7);
        let both = |first, second| [event(0, op, 0, 10, first), event(1, op, 5, 15, second)];
        assert_eq!(explain(&initial(), &both(MADE, lost), &found), Verdict::Explained);
        assert_eq!(explain(&initial(), &both(lost, MADE), &found), Verdict::Explained);
        assert_eq!(explain(&initial(), &both(MADE, MADE), &found), Verdict::Impossible);
        assert_eq!(explain(&initial(), &both(lost, lost), &found), Verdict::Impossible);
    }

    #[test]
    fn what_has_returned_comes_first() {
        let op = create();
        let lost = Answer::Failed(Errno::EEXIST);
        let one_after_the_other = [event(0, op, 0, 10, lost), event(1, op, 11, 15, MADE)];
        assert_eq!(explain(&initial(), &one_after_the_other, &found_after(op, 7)), Verdict::Impossible);
    }

    #[test]
    fn what_is_unknown_happened_or_not() {
        let op = create();
        let events = [event(0, op, 0, 10, Answer::Unknown)];
        assert_eq!(explain(&initial(), &events, &found_after(op, 7)), Verdict::Explained);
        let mut nothing = found_after(op, 7);
        let SharedOp::Create(name) = op else { unreachable!() };
        nothing.remove(&name.key());
        assert_eq!(explain(&initial(), &events, &nothing), Verdict::Explained);
    }

    /// Seen on ext4 and tmpfs as well, every few hundred looks, when another unlinks.
    #[test]
    fn a_link_count_changes_before_the_name() {
        let (a, b) = (Name::new(0, 0), Name::new(0, 1));
        let found = Final::from([((0, 0), (seen(1, 1), vec![])), ((1, 1), (seen(2, 1), vec![]))]);
        let link = event(0, SharedOp::Link(a, b), 0, 10, Answer::Done);
        let unlink = |from, to| event(0, SharedOp::Unlink(b), from, to, Answer::Done);
        let look = |from, links| event(1, SharedOp::Stat(b), from, from + 1, seen(1, links));
        let verdict = |events: &[Event]| explain(&initial(), events, &found);

        let twice = [link.clone(), unlink(20, 40), look(25, 1), look(30, 1)];
        assert_eq!(verdict(&twice), Verdict::Explained);
        let back = [link.clone(), unlink(20, 40), look(25, 1), look(30, 2)];
        assert_eq!(verdict(&back), Verdict::Impossible);
        let late = [link.clone(), unlink(20, 40), look(25, 1), look(41, 1)];
        assert_eq!(verdict(&late), Verdict::Impossible);
        // Who changes names waits for the one that is changing them.
        let create = |ino| event(2, SharedOp::Create(b), 26, 28, Answer::Made { ino });
        let between = [link, unlink(20, 40), look(25, 1), create(3), look(30, 1)];
        assert_eq!(verdict(&between), Verdict::Impossible);
    }

    #[test]
    fn what_a_kill_cut_short_is_not_half_done_after_it() {
        let (a, b) = (Name::new(0, 0), Name::new(0, 1));
        let link = event(0, SharedOp::Link(a, b), 0, 10, Answer::Done);
        let unlink = event(0, SharedOp::Unlink(b), 20, 40, Answer::Unknown);
        let look = event(1, SharedOp::Stat(a), 25, 26, seen(1, 2));
        let events = [link, unlink, look];
        let found = |names: &[(u8, u8)], links| {
            let other = ((1, 1), (seen(2, 1), vec![]));
            let all = names.iter().map(|name| (*name, (seen(1, links), vec![])));
            explain(&initial(), &events, &all.chain([other]).collect())
        };
        assert_eq!(found(&[(0, 0), (0, 1)], 2), Verdict::Explained);
        assert_eq!(found(&[(0, 0)], 1), Verdict::Explained);
        assert_eq!(found(&[(0, 0), (0, 1)], 1), Verdict::Impossible);
        assert_eq!(found(&[(0, 0)], 2), Verdict::Impossible);
    }
}
