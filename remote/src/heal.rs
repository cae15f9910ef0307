//! Damage of a mounted pool that its server knows of is mended with the second copy, without anybody's asking: beside
//! the passes of the pool's carrier, on a thread of its own, by the program that does so when a person asks for it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use tensorfs_layout::pool::holder;

use crate::carry::{Healing, Mended, Note, Unmended};
use crate::error::{Error, Result};
use crate::outside::{Answer, Errand, Outside};

/// The program that serves mounts, and has files mended.
const PROGRAM: &str = "tensorfs";

/// A file that could not be mended is tried again after so long; twice that the next time, and this at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60 * 60));

/// So many damaged files are looked after at a time; the others' turn comes as these are mended, written or removed.
const MOST: usize = 4096;

/// So many files that could not be mended are named in the pool's note, each with so many characters.
const NAMED: (usize, usize) = (10, 500);

/// Who mends the files of a pool.
#[derive(Debug)]
pub struct Healer(Arc<Mutex<Healing>>);

impl Healer {
    /// Looks after the files of a pool, from now on until this process ends: it is their carrier, and the only one.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn start(pool: &Path, every: Duration, note: &Note, outside: Outside) -> Result<Self> {
        let before = Healing { unmended_files: 0, unmended: Vec::new(), ..note.healing.clone() };
        let healing = Arc::new(Mutex::new(before));
        let (pool, own, uuid) = (pool.to_owned(), healing.clone(), note.pool.clone());
        let healer = move || run((&pool, &uuid), every, &own, &outside);
        let begun = thread::Builder::new().name("healer".to_owned()).spawn(healer);
        let failed = |source| Error::Host { path: "a thread".to_owned(), what: "start", source };
        begun.map(|_| Self(healing)).map_err(failed)
    }

    /// What has come of it.
    pub fn healing(&self) -> Healing {
        locked(&self.0).clone()
    }
}

fn locked(healing: &Mutex<Healing>) -> MutexGuard<'_, Healing> {
    healing.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A damaged file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Damaged {
    /// Where it is.
    path: PathBuf,
    /// From the root of the mount on, as it is told.
    name: String,
    /// What is wrong with it, as far as it is known. If that is something else, the damage is another one.
    what: String,
}

/// What was tried with a file that is damaged yet.
#[derive(Debug)]
struct Tried {
    damaged: Damaged,
    tries: u32,
    /// Not before.
    due: Instant,
    /// Why it could not be mended, if it could not.
    why: Option<String>,
}

/// All of them, by their numbers.
#[derive(Debug, Default)]
struct Patients(HashMap<u64, Tried>);

impl Patients {
    /// These are damaged now, and no others.
    fn are(&mut self, damaged: BTreeMap<u64, Damaged>, now: Instant) {
        self.0.retain(|ino, _| damaged.contains_key(ino));
        for (ino, damaged) in damaged {
            let is_known = self.0.get(&ino).is_some_and(|known| known.damaged.what == damaged.what);
            match self.0.get_mut(&ino).filter(|_| is_known) {
                Some(known) => known.damaged = damaged,
                None => drop(self.0.insert(ino, Tried { damaged, tries: 0, due: now, why: None })),
            }
        }
    }

    /// Whose turn it is: of those whose time has come, the one that was tried least.
    fn next(&self, now: Instant) -> Option<(u64, Damaged)> {
        let due = self.0.iter().filter(|(_, tried)| tried.due <= now);
        let next = due.min_by_key(|(ino, tried)| (tried.tries, tried.due, **ino))?;
        Some((*next.0, next.1.damaged.clone()))
    }

    /// A file was tried; if it could not be mended, `why` says so. True if that was not said of it before.
    fn tried(&mut self, ino: u64, why: Option<&str>, now: Instant) -> bool {
        let Some(tried) = self.0.get_mut(&ino) else { return false };
        // One that was mended is not among them the next time. If it is, it was damaged again so soon.
        let longer = 1_u32.checked_shl(tried.tries).unwrap_or(u32::MAX);
        tried.due = now + PAUSE.0.saturating_mul(longer).min(PAUSE.1);
        tried.tries = tried.tries.saturating_add(1);
        let is_new = why.is_some() && tried.why.as_deref() != why;
        tried.why = why.map(str::to_owned);
        is_new
    }

    /// How many could not be mended, and some of them.
    fn unmended(&self) -> (u64, Vec<Unmended>) {
        let mut all: Vec<(&Tried, &String)> =
            self.0.values().filter_map(|tried| Some((tried, tried.why.as_ref()?))).collect();
        all.sort_by(|(one, _), (other, _)| one.damaged.name.cmp(&other.damaged.name));
        let cut = |text: &str| text.chars().take(NAMED.1).collect::<String>();
        let named = all.iter().take(NAMED.0).map(|(tried, why)| Unmended {
            path: cut(&tried.damaged.name),
            why: cut(why),
            tries: tried.tries,
        });
        (all.len() as u64, named.collect())
    }
}

fn run((pool, uuid): (&Path, &str), every: Duration, healing: &Mutex<Healing>, outside: &Outside) {
    let mut patients = Patients::default();
    loop {
        let damaged = match look(pool, uuid, outside) {
            Ok(damaged) => damaged,
            Err(why) => {
                log::debug!("{}: nobody knows what is damaged: {why}", pool.display());
                sleep(every);
                continue;
            }
        };
        patients.are(damaged, Instant::now());
        let next = patients.next(Instant::now());
        if let Some((ino, Damaged { path, name, .. })) = &next {
            let batch = Note::of(pool, uuid).ok().flatten().map_or(0, |note| note.number);
            let mended = have_mended(path, *ino, outside);
            let is_new = patients.tried(*ino, mended.as_ref().err().map(String::as_str), Instant::now());
            match mended {
                Ok(()) => {
                    log::warn!("{name}: was damaged, and is mended with the remote's tree after batch {batch}");
                    let mut healing = locked(healing);
                    healing.mended += 1;
                    healing.last = Some(Mended { path: name.clone(), time: now(), batch });
                }
                Err(why) if is_new => log::error!("{name}: is damaged, and not mended: {why}"),
                Err(why) => log::debug!("{name}: not mended: {why}"),
            }
        }
        {
            let mut healing = locked(healing);
            (healing.unmended_files, healing.unmended) = patients.unmended();
        }
        if next.is_none() {
            sleep(every);
        }
    }
}

/// A line of `scrub --known`.
#[derive(Deserialize)]
struct Known {
    pool: String,
    ino: u64,
    name: String,
    what: String,
    path: String,
    path_bytes: Option<Vec<u8>>,
}

/// The files of a mounted pool that its server knows to be damaged, by their numbers.
fn look(pool: &Path, uuid: &str, outside: &Outside) -> std::result::Result<BTreeMap<u64, Damaged>, String> {
    if !holder(pool).is_ok_and(|holder| holder.is_some_and(|holder| holder.mountpoint.is_some())) {
        return Err("it is not mounted".to_owned());
    }
    let (is_well, stdout, stderr) = said(outside.ask(&Errand::Known))?;
    if !is_well {
        return Err(last_line(&stderr));
    }
    let mut damaged = BTreeMap::new();
    for line in stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).take(MOST) {
        let known: Known = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        if known.pool != uuid {
            return Err("another pool is mounted there".to_owned());
        }
        let path = known.path_bytes.unwrap_or(known.path.into_bytes());
        let Known { name, what, .. } = known;
        damaged.insert(known.ino, Damaged { path: PathBuf::from(OsString::from_vec(path)), name, what });
    }
    Ok(damaged)
}

/// Has a file mended. An error: why it is not.
fn have_mended(file: &Path, ino: u64, outside: &Outside) -> std::result::Result<(), String> {
    let path = file.as_os_str().as_bytes().to_vec();
    let (is_well, _, stderr) = said(outside.ask(&Errand::Mend { path, ino }))?;
    if is_well {
        return Ok(());
    }
    let said = last_line(&stderr);
    let why = said.split_once("not mended: ").map_or(&*said, |(_, why)| why);
    // Which file that is, is said beside it.
    Err(why.strip_prefix(&format!("{}: ", file.display())).unwrap_or(why).to_owned())
}

/// Whether a program ended well, and what it said on standard output and error.
type Said = (bool, Vec<u8>, Vec<u8>);

fn said(answer: io::Result<Answer>) -> std::result::Result<Said, String> {
    match answer {
        Ok(Answer::Said { is_well, output, error }) => Ok((is_well, output, error)),
        Ok(Answer::Failed(why)) => Err(why),
        Ok(_) => Err("it was not done".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The files that the server of a pool's mount knows to be damaged, as the other program says it.
pub fn known(pool: &Path) -> io::Result<Output> {
    ask(&["scrub", "--known"], pool)
}

/// Has the other program mend a file that is damaged.
pub fn mend(file: &Path, ino: u64) -> io::Result<Output> {
    ask(&["verify", "--mend", "--known", &ino.to_string()], file)
}

fn last_line(said: &[u8]) -> String {
    String::from_utf8_lossy(said).lines().last().unwrap_or("it ended without a word").to_owned()
}

/// Has the other program say or do something about a path. It ends with this one.
fn ask(arguments: &[&str], path: &Path) -> io::Result<Output> {
    let own = std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
    let program = own.filter(|program| program.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let mut command = Command::new(program);
    command.args(arguments).arg("--").arg(path).stdin(Stdio::null());
    // SAFETY: prctl(2) may be called between fork and exec.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    command.output()
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damaged(all: &[(u64, &str)]) -> BTreeMap<u64, Damaged> {
        let one = |(ino, what): &(u64, &str)| {
            let name = format!("/f{ino}");
            (*ino, Damaged { path: PathBuf::from(&name), name, what: (*what).to_owned() })
        };
        all.iter().map(one).collect()
    }

    #[test]
    fn one_that_cannot_be_mended_keeps_no_other_waiting_and_is_tried_less_and_less() {
        let (mut patients, begin) = (Patients::default(), Instant::now());
        patients.are(damaged(&[(1, "a"), (2, "b")]), begin);
        assert_eq!(patients.next(begin).unwrap().0, 1);
        assert!(patients.tried(1, Some("why"), begin));
        // The other one, and those that come later.
        assert_eq!(patients.next(begin).unwrap().0, 2);
        patients.tried(2, None, begin);
        assert_eq!(patients.next(begin).map(|next| next.0), None);
        let (mut now, mut pauses) = (begin, Vec::new());
        for _ in 0..12 {
            patients.are(damaged(&[(1, "a")]), now);
            let before = now;
            while patients.next(now).is_none() {
                now += Duration::from_secs(5);
            }
            pauses.push((now - before).as_secs());
            assert!(!patients.tried(1, Some("why"), now), "it is told once");
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600]);
        assert_eq!((patients.unmended().0, patients.unmended().1[0].tries), (1, 13));
        // Another reason is told, and damage of another kind tried at once.
        assert!(patients.tried(1, Some("another"), now));
        assert_eq!(patients.next(now).map(|next| next.0), None);
        patients.are(damaged(&[(1, "c")]), now);
        assert_eq!(patients.next(now).unwrap().0, 1);
        assert_eq!(patients.unmended().0, 0);
        patients.are(BTreeMap::new(), now);
        assert_eq!(patients.next(now + PAUSE.1), None);
    }
}
