//! Plays a list of steps and events on a fresh pool, with actors in processes of their own.

use crate::children::{Child, start};
use crate::mount::{Mount, Passthrough, Setup};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// What happens to the mount between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Nothing; everything that is there is compared, as after the others.
    Compare,
    /// Everything is made durable.
    Sync,
    /// The pool is unmounted and mounted again. The actors close what they have open.
    Remount,
    /// The server is killed and the pool mounted again, with nothing open.
    KillClosed,
    /// Likewise; what is open is closed once the server is dead.
    KillOpen,
    /// Likewise; what is open is closed once the pool is mounted again.
    KillHeld,
}

/// All events, with their names.
pub const EVENTS: [(&str, Event); 6] = [
    ("compare", Event::Compare),
    ("sync", Event::Sync),
    ("remount", Event::Remount),
    ("kill-closed", Event::KillClosed),
    ("kill-open", Event::KillOpen),
    ("kill-held", Event::KillHeld),
];

/// Part of what is played: a step, by its number, which each actor does, or an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Item {
    Step(usize),
    Event(Event),
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Item::Step(number) => write!(f, "{number}"),
            Item::Event(event) => f.write_str(EVENTS.iter().find(|(_, e)| e == event).map_or("", |(name, _)| name)),
        }
    }
}

impl Item {
    /// Reads what `to_string` wrote.
    pub fn parse(text: &str) -> Option<Item> {
        let event = EVENTS.iter().find(|(name, _)| *name == text).map(|(_, event)| Item::Event(*event));
        event.or_else(|| text.parse().ok().map(Item::Step))
    }
}

/// Which mount, which steps, and who does them.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Plan {
    pub passthrough: Passthrough,
    pub durability: &'static str,
    pub seed: u64,
    /// How many steps there are for each actor; those that are played are a part of them.
    pub count: usize,
    /// The actors of each process, one thread each.
    pub processes: Vec<Vec<u64>>,
    /// The server is killed at any moment, so often on average, and followed by another one.
    pub kills: Option<Duration>,
}

/// Steps that were done, that failed on both sides, and that were skipped.
pub type Totals = [u64; 3];

/// Plays it. Returns how tensorfs differed from ext4, if it did; otherwise also how many servers were killed by
/// [`Plan::kills`].
pub fn play(plan: &Plan, items: &[Item]) -> Result<(Totals, u64), String> {
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut setup = Setup::new("model", plan.passthrough).mount_with(["--durability", plan.durability]);
        if let Some(average) = plan.kills {
            setup = setup.kills(average);
        }
        let mut mount = setup.mount();
        let totals = Stage::new(plan, &mut mount).play(items)?;
        check(&mut mount)?;
        Ok((totals, mount.killed()))
    }));
    played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or("a panic".to_owned()))
    })
}

/// The server has met no error of its own, and the pool is as it should be.
fn check(mount: &mut Mount) -> Result<(), String> {
    if mount.is_plain() {
        return Ok(());
    }
    mount.umount();
    let log = mount.log();
    // Of one that somebody kills its keeper says so.
    let is_wrong = |line: &&str| line.contains(" ERROR ") && !line.contains("another one takes over");
    if let Some(line) = log.lines().find(|line| is_wrong(line) || line.contains("panicked")) {
        return Err(format!("the server logged: {line}"));
    }
    let output = mount.tensorfs(["check".as_ref(), mount.pool().as_os_str()]);
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "tensorfs check: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

struct Stage<'a> {
    mount: &'a mut Mount,
    processes: Vec<Child>,
}

impl<'a> Stage<'a> {
    fn new(plan: &Plan, mount: &'a mut Mount) -> Stage<'a> {
        let processes = plan.processes.iter().map(|actors| {
            let mut arguments = vec!["lockstep".to_owned(), plan.seed.to_string(), plan.count.to_string()];
            arguments.extend([mount.path().display().to_string(), mount.host().display().to_string()]);
            arguments.push(plan.kills.is_some().to_string());
            arguments.extend(actors.iter().map(u64::to_string));
            start("tensorfs-test-actors", arguments)
        });
        Stage { processes: processes.collect(), mount }
    }

    /// Tells all processes, and waits for all.
    fn all(&mut self, order: &str) -> Result<Vec<String>, String> {
        self.processes.iter_mut().for_each(|process| process.tell(order));
        let answers: Vec<_> = self.processes.iter_mut().map(Child::try_answer).collect();
        answers
            .into_iter()
            .map(|answer| match answer?.split_once(' ') {
                Some(("failed", text)) => Err(text.replace('\x1f', "\n")),
                Some((_, text)) => Ok(text.to_owned()),
                None => Ok(String::new()),
            })
            .collect()
    }

    fn play(mut self, items: &[Item]) -> Result<Totals, String> {
        let mut steps: Vec<String> = Vec::new();
        for item in items.iter().chain(&[Item::Event(Event::Compare)]) {
            match item {
                Item::Step(number) => steps.push(number.to_string()),
                Item::Event(event) => {
                    if !steps.is_empty() {
                        self.all(&format!("run {}", steps.join(",")))?;
                        steps.clear();
                    }
                    self.happen(*event).map_err(|text| format!("{event:?}: {text}"))?;
                }
            }
        }
        let mut totals = Totals::default();
        for counts in self.all("counts")? {
            for (n, count) in counts.split(' ').enumerate() {
                totals[n % 3] += count.parse::<u64>().unwrap_or(0);
            }
        }
        self.all("leave")?;
        self.processes.into_iter().for_each(Child::end);
        Ok(totals)
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        // What the kernel has not yet written of a file that the server serves, a killed server was not sent; that is
        // only what was stored through a mapping that is still there.
        if matches!(event, Event::KillOpen | Event::KillHeld) {
            self.all("unmap")?;
        }
        if matches!(event, Event::Remount | Event::KillClosed) {
            self.all("leave")?;
        }
        match event {
            Event::Compare => {}
            Event::Sync => self.mount.sync(),
            Event::Remount => self.mount.remount(),
            Event::KillClosed | Event::KillOpen | Event::KillHeld => {
                self.mount.kill9();
                if event == Event::KillOpen {
                    self.all("leave")?;
                }
                self.mount.mount();
                if event == Event::KillHeld {
                    self.all("leave")?;
                }
            }
        }
        if !matches!(event, Event::Compare | Event::Sync) {
            self.all("enter")?;
        }
        self.all("compare").map(drop)
    }
}
