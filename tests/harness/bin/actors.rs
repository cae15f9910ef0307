//! Actors of the model-based test, each a thread of this process. See `tests/suites/model.rs`.
//!
//! `tensorfs-test-actors lockstep SEED COUNT OURS THEIRS KILLS ACTOR...` answers each line of its input with a line,
//! `ok ...` or `failed ...`, once all actors have done it. KILLS is `true` where servers are killed meanwhile:
//!
//! ```text
//! run STEP,...   does these steps
//! compare        compares everything that is there
//! unmap          takes mappings down
//! leave          closes everything
//! enter          opens the directories again
//! counts         steps that were done, that failed, and that were skipped
//! ```
//!
//! `tensorfs-test-actors shared SEED WORKER...` does the same for workers on shared names; `burst NUMBER START PATH` is
//! one burst, and its answer are the workers' events.

use std::io::{self, BufRead};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use tensorfs_tests::model::lockstep::Actor;
use tensorfs_tests::model::shared;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["lockstep", seed, count, ours, theirs, kills, ref actors @ ..] => {
            let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("number: {text:?}"));
            let (ours, theirs) = (PathBuf::from(ours), PathBuf::from(theirs));
            let under_kills = kills == "true";
            let threads = actors.iter().map(|actor| {
                let (tell, orders) = channel();
                let (report, answers) = channel();
                let (ours, theirs) = (ours.clone(), theirs.clone());
                let (seed, actor, count) = (number(seed), number(actor), number(count) as usize);
                std::thread::spawn(move || {
                    own_working_directory();
                    serve(Actor::new(seed, actor, count, &ours, &theirs, under_kills), &orders, &report);
                });
                (tell, answers)
            });
            coordinate(&threads.collect::<Vec<_>>());
        }
        ["shared", seed, ref workers @ ..] => {
            let seed = seed.parse().expect("a number");
            let threads = workers.iter().map(|worker| {
                let worker = worker.parse().expect("a number");
                let (tell, orders) = channel::<String>();
                let (report, answers) = channel();
                std::thread::spawn(move || {
                    while let Ok(order) = orders.recv() {
                        let mut words = order.splitn(4, ' ').skip(1);
                        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
                        let (burst, start) = (number(), number());
                        let path = PathBuf::from(words.next().expect("a path"));
                        let events = shared::work(&path, seed, burst, worker, start);
                        if report.send(Ok(shared::to_words(&events))).is_err() {
                            return;
                        }
                    }
                });
                (tell, answers)
            });
            coordinate(&threads.collect::<Vec<_>>());
        }
        _ => panic!("see the source for usage: {arguments:?}"),
    }
}

/// Working directory and umask become this thread's own.
fn own_working_directory() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).expect("unshare");
    // SAFETY: plain system call.
    unsafe { libc::umask(0o022) };
}

type Thread = (Sender<String>, Receiver<Result<String, String>>);

fn coordinate(threads: &[Thread]) {
    for line in io::stdin().lock().lines() {
        let line = line.unwrap();
        for (tell, _) in threads {
            tell.send(line.clone()).expect("the actor lives");
        }
        let answers: Vec<_> = threads.iter().map(|(_, answers)| answers.recv().expect("the actor lives")).collect();
        let answer = match answers.iter().find_map(|answer| answer.as_ref().err()) {
            Some(failure) => format!("failed {}", failure.replace('\n', "\x1f")),
            None => format!("ok {}", answers.into_iter().flatten().collect::<Vec<_>>().join(" ")),
        };
        println!("{answer}");
    }
}

fn serve(mut actor: Actor, orders: &Receiver<String>, report: &Sender<Result<String, String>>) {
    while let Ok(order) = orders.recv() {
        let mut answer = String::new();
        let result = match order.split_once(' ').unwrap_or((&order, "")) {
            ("run", steps) => steps.split(',').try_for_each(|step| actor.run(step.parse().expect("a number"))),
            ("compare", _) => actor.compare(),
            ("unmap", _) => {
                actor.unmap();
                Ok(())
            }
            ("leave", _) => {
                actor.leave();
                Ok(())
            }
            ("enter", _) => {
                actor.enter();
                Ok(())
            }
            ("counts", _) => {
                let counts = actor.counts;
                answer = format!("{} {} {}", counts.done, counts.failed, counts.skipped);
                Ok(())
            }
            _ => panic!("unknown: {order}"),
        };
        if report.send(result.map(|()| answer)).is_err() {
            return;
        }
    }
}
