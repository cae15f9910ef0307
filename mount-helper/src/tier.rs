//! `tensorfs tier`: the directories that a pool keeps its files in, and which files go where.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use tensorfs_fs::{check_placement, tiers_of_placement};
use tensorfs_layout::{Contents, Error, OpenOptions, PLACEMENT_MAX, Pool, TierInfo, TierState, Timestamp};

use crate::cli::{Tier, TierAdd, TierCommand, TierList, TierMap, TierRemove};
use crate::failure::{At, Failure, reason};
use crate::target::Target;
use crate::{info, output, paths, size, text, tier_move};

/// Where a mounted pool shows its placement map.
const MAP: &str = ".tensorfs/placement";

/// Runs the command.
pub fn run(arguments: &Tier) -> Result<ExitCode, Failure> {
    match &arguments.command {
        TierCommand::Add(arguments) => add(arguments),
        TierCommand::Remove(arguments) => remove(arguments),
        TierCommand::List(arguments) => list(arguments),
        TierCommand::Map(arguments) => map(arguments),
        TierCommand::Move(arguments) => return tier_move::run(arguments),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Opens a pool that must not be mounted.
pub fn open(pool: &Path) -> Result<Pool, Failure> {
    let options = OpenOptions { now: Timestamp::from(SystemTime::now()), ..OpenOptions::default() };
    match Pool::open(pool, &options) {
        Err(Error::Busy { pid, mountpoint, .. }) => {
            let at = mountpoint.map(|path| format!(", mounted at {}", path.display())).unwrap_or_default();
            Err(Failure::at(pool, format!("in use by process {pid}{at}; unmount it first")))
        }
        opened => Ok(opened?),
    }
}

/// Does something to a pool that is not mounted, and closes it in any case.
fn with_pool<T>(path: &Path, work: impl FnOnce(&Pool) -> Result<T, Failure>) -> Result<T, Failure> {
    let pool = open(&paths::real(path)?)?;
    let done = work(&pool);
    let closed = pool.close();
    let done = done?;
    closed?;
    Ok(done)
}

fn add(arguments: &TierAdd) -> Result<(), Failure> {
    let directory = paths::future(&arguments.directory)?;
    let name = &arguments.name;
    let tier = with_pool(&arguments.pool, |pool| {
        pool.add_tier(name, &directory)?;
        let view = pool.view();
        let added = view.tiers().find(|(_, tier)| *tier.name == **name);
        Ok(added.is_some_and(|(_, tier)| tier.volatile))
    })?;
    let volatile = if tier { ", volatile: its files are lost when the machine is started anew" } else { "" };
    output::print(&format!("added tier {name}: {}{volatile}\n", directory.display()))
}

fn remove(arguments: &TierRemove) -> Result<(), Failure> {
    let name = &arguments.name;
    with_pool(&arguments.pool, |pool| {
        let named = tiers_of_placement(pool.view().placement()).unwrap_or_default();
        if named.contains(name) {
            return Err(Failure::at(
                &arguments.pool,
                format!("the placement map names tier {name}; change that first"),
            ));
        }
        Ok(pool.remove_tier(name)?)
    })?;
    output::print(&format!("removed tier {name}\n"))
}

fn list(arguments: &TierList) -> Result<(), Failure> {
    let info = info::about(&arguments.target)?;
    let unknown =
        |error| Failure::at(&arguments.target, format!("its server speaks of something unknown here ({error})"));
    let info: serde_json::Value = serde_json::from_str(&info).map_err(unknown)?;
    let tiers = info.get("tiers").cloned().unwrap_or_default();
    if arguments.json {
        return output::print(&format!("{tiers:#}\n"));
    }
    let tiers: Vec<TierInfo> = serde_json::from_value(tiers).map_err(unknown)?;
    output::print(&table(&tiers))
}

fn table(tiers: &[TierInfo]) -> String {
    let titles = ["TIER", "FILES", "USED", "FREE", "STATE"].map(str::to_owned);
    let mut rows = vec![(titles.to_vec(), "DIRECTORY".to_owned())];
    for tier in tiers {
        let state = match (tier.state, tier.volatile, tier.lost) {
            (TierState::Missing, ..) => "missing".to_owned(),
            (TierState::Lost, ..) => "lost".to_owned(),
            (TierState::Ready, volatile, lost) => {
                let kind = if volatile { "volatile" } else { "ready" };
                if lost > 0 { format!("{kind}, {lost} lost") } else { kind.to_owned() }
            }
        };
        let free = if tier.state == TierState::Ready { size::humane(tier.free) } else { "-".to_owned() };
        let cells = vec![tier.name.clone(), tier.files.to_string(), size::humane(tier.used), free, state];
        let why = tier.reason.as_ref().map(|why| format!("  ({})", text::plain(why))).unwrap_or_default();
        rows.push((cells, text::plain(&tier.directory) + &why));
    }
    let width = |column: usize| rows.iter().map(|(cells, _)| cells[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..titles_len(&rows)).map(width).collect();
    rows.iter()
        .map(|(cells, last)| text::row(&cells.iter().cloned().zip(widths.iter().copied()).collect::<Vec<_>>(), last))
        .collect()
}

fn titles_len(rows: &[(Vec<String>, String)]) -> usize {
    rows.first().map_or(0, |(cells, _)| cells.len())
}

fn map(arguments: &TierMap) -> Result<(), Failure> {
    let target = Target::of(&arguments.target)?;
    let mount = match target {
        Target::Mount(mount) => Some(mount.mount_point),
        Target::Pool(pool) => match tensorfs_layout::holder(&pool)? {
            Some(_) => Some(Target::Pool(pool).mount()?.mount_point),
            None => None,
        },
    };
    let Some(file) = &arguments.file else {
        let text = match &mount {
            Some(mount) => fs::read_to_string(mount.join(MAP)).at(&mount.join(MAP))?,
            None => Contents::read(&paths::real(&arguments.target)?)?.view().placement().to_owned(),
        };
        return output::print(&text);
    };
    let text = read(file)?;
    match &mount {
        Some(mount) => replace_on_mount(mount, &text),
        None => with_pool(&arguments.target, |pool| {
            let tiers: Vec<String> = pool.view().tiers().map(|(_, tier)| tier.name.to_string()).collect();
            check_placement(&text, &tiers).map_err(|why| Failure::at(file, why))?;
            Ok(pool.set_placement(&text)?)
        }),
    }
}

fn read(file: &Path) -> Result<String, Failure> {
    let limit = PLACEMENT_MAX as u64 + 1;
    let mut text = String::new();
    let read = match file.as_os_str() == "-" {
        true => io::stdin().take(limit).read_to_string(&mut text),
        false => fs::File::open(file).and_then(|file| file.take(limit).read_to_string(&mut text)),
    };
    read.at(file)?;
    Ok(text)
}

fn replace_on_mount(mount: &Path, text: &str) -> Result<(), Failure> {
    let path: PathBuf = mount.join(MAP);
    // Said here which line is wrong: the server says no more than that one is.
    let tiers: serde_json::Value =
        serde_json::from_str(&info::about(mount)?).map_err(|error| Failure::at(mount, error))?;
    let names: Vec<String> = tiers["tiers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tier| tier["name"].as_str().map(str::to_owned))
        .collect();
    check_placement(text, &names).map_err(|why| Failure::at(mount, why))?;
    let mut file = fs::File::options().write(true).truncate(true).open(&path).at(&path)?;
    file.write_all(text.as_bytes()).at(&path)?;
    match file.sync_all() {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Err(Failure::at(&path, "the server refuses the map; its log says which line is wrong"))
        }
        Err(error) => Err(Failure::at(&path, reason(&error))),
        Ok(()) => Ok(()),
    }
}
