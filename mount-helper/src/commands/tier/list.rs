//! `tensorfs tier list`.

use tensorfs_layout::segment::{TierInfo, TierState};

use crate::ask::about;
use crate::cli::TierList;
use crate::show::failure::Failure;
use crate::show::{output, size, table, text};

/// Runs the command.
pub fn run(arguments: &TierList) -> Result<(), Failure> {
    let info = about::json(&arguments.target)?.json;
    let unknown =
        |error| Failure::at(&arguments.target, format!("its server speaks of something unknown here ({error})"));
    let info: serde_json::Value = serde_json::from_str(&info).map_err(unknown)?;
    let tiers = info.get("tiers").cloned().unwrap_or_default();
    if arguments.json {
        return output::print(&format!("{tiers:#}\n"));
    }
    let tiers: Vec<TierInfo> = serde_json::from_value(tiers).map_err(unknown)?;
    output::print(&text_of(&tiers))
}

fn text_of(tiers: &[TierInfo]) -> String {
    let titles = ["TIER", "FILES", "USED", "FREE", "STATE"].map(str::to_owned);
    let mut rows = vec![(titles.to_vec(), "DIRECTORY".to_owned())];
    for tier in tiers {
        let state = match (tier.state, tier.volatile, tier.lost) {
            (TierState::Missing, ..) => "missing".to_owned(),
            (TierState::Away, ..) if tier.files > 0 => format!("away, {}", size::humane(tier.bytes)),
            (TierState::Away, ..) => "away".to_owned(),
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
    let widths = table::widths(rows.iter().map(|(cells, _)| cells.as_slice()), titles.len());
    rows.iter().map(|(cells, last)| table::line(cells, &widths, last)).collect()
}
