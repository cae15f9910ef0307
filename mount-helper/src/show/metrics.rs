//! Metrics of several mounts in one text: what each server says, put together family by family.

use std::collections::HashMap;
use std::fmt::Write;

const NAMES: &str = "tensorfs_";
/// What is said here.
const UP: &str = "tensorfs_up";

/// The families of several OpenMetrics texts, in the order in which they came first.
#[derive(Debug, Default)]
pub struct Families {
    all: Vec<Family>,
    /// Where each is, by its name.
    places: HashMap<String, usize>,
}

#[derive(Debug)]
struct Family {
    name: String,
    /// What kind it is of, and what it means: lines that begin with `#`.
    about: Vec<String>,
    samples: Vec<String>,
}

impl Families {
    /// Adds what a server says of one mount, which is called so; it may know it by another name.
    pub fn add(&mut self, mount: &str, text: &str) {
        self.add_lines(text, |name| name.starts_with(NAMES) && name != UP, |line| renamed(line, mount));
    }

    /// Adds families of which the name is one, with samples that are called as they are, each as something makes of it.
    fn add_lines(&mut self, text: &str, is_one: impl Fn(&str) -> bool, sample: impl Fn(&str) -> Option<String>) {
        let mut at = None;
        for line in text.lines().filter(|line| !line.is_empty() && *line != "# EOF") {
            let Some(about) = line.strip_prefix("# ") else {
                if let Some(family) = at.map(|at: usize| &mut self.all[at])
                    && line.starts_with(&family.name)
                {
                    family.samples.extend(sample(line));
                }
                continue;
            };
            let name = about.split(' ').nth(1).unwrap_or_default();
            at = is_one(name).then(|| self.place(name));
            let Some(family) = at.map(|at| &mut self.all[at]) else { continue };
            // Of the same family, the first one has said it.
            if family.samples.is_empty() && !family.about.iter().any(|said| said == line) {
                family.about.push(line.to_owned());
            }
        }
    }

    fn place(&mut self, name: &str) -> usize {
        if let Some(at) = self.places.get(name) {
            return *at;
        }
        self.all.push(Family { name: name.to_owned(), about: Vec::new(), samples: Vec::new() });
        self.places.insert(name.to_owned(), self.all.len() - 1);
        self.all.len() - 1
    }

    /// Whether the server of each mount answers.
    pub fn add_up<'m>(&mut self, mounts: impl IntoIterator<Item = (&'m str, bool)>) {
        let mut text = "# HELP tensorfs_up 1 if the mount's server answers.\n# TYPE tensorfs_up gauge\n".to_owned();
        for (mount, up) in mounts {
            let _ = writeln!(text, "tensorfs_up{{mount=\"{}\"}} {}", escaped(mount), u8::from(up));
        }
        self.add_lines(&text, |name| name == UP, |line| Some(line.to_owned()));
    }

    /// As OpenMetrics text.
    pub fn open_metrics(&self) -> String {
        let lines = self.all.iter().flat_map(|family| family.about.iter().chain(&family.samples));
        lines.map(|line| format!("{line}\n")).chain(["# EOF\n".to_owned()]).collect()
    }

    /// In Prometheus' own format, which node exporter reads: there a counter is called as its samples are.
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        for family in &self.all {
            let kind = format!("# TYPE {} counter", family.name);
            let is_counter = family.about.contains(&kind);
            for line in family.about.iter().filter(|line| !line.starts_with("# UNIT ")) {
                let total = format!(" {}_total ", family.name);
                let line =
                    if is_counter { line.replacen(&format!(" {} ", family.name), &total, 1) } else { line.clone() };
                text += &line;
                text.push('\n');
            }
            for line in &family.samples {
                text += line;
                text.push('\n');
            }
        }
        text
    }
}

/// As the value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A sample with another value of the label `mount`, which is the first one; none if it is not.
fn renamed(line: &str, mount: &str) -> Option<String> {
    const LABEL: &str = "{mount=\"";
    let (name, labels) = line.split_once(LABEL)?;
    let mut is_escaped = false;
    let end = labels.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })?;
    Some(format!("{name}{LABEL}{}{}", escaped(mount), &labels[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_of_two_mounts_is_one() {
        let of = |mount: &str| {
            format!(
                "# HELP tensorfs_x_bytes Bytes.\n# TYPE tensorfs_x_bytes counter\n\
                 tensorfs_x_bytes_total{{mount=\"{mount}\",kind=\"k\"}} 1\n\
                 # HELP tensorfs_y A y.\n# TYPE tensorfs_y gauge\ntensorfs_y{{mount=\"{mount}\"}} 2\n\
                 tensorfs_up{{mount=\"b\"}} 1\n# TYPE other gauge\nother 1\n# TYPE tensorfs_up gauge\n\
                 tensorfs_up{{mount=\"b\"}} 1\n# EOF\n"
            )
        };
        let mut all = Families::default();
        // The second one is called otherwise by its server.
        all.add("a", &of("a"));
        all.add("b", &of(r#"\\\"q,{mount=\"w"#));
        all.add_up([("a\"", true), ("b", false)]);
        let about_up = "# HELP tensorfs_up 1 if the mount's server answers.\n# TYPE tensorfs_up gauge\n";
        let up = format!("{about_up}tensorfs_up{{mount=\"a\\\"\"}} 1\ntensorfs_up{{mount=\"b\"}} 0\n");
        let y =
            "# HELP tensorfs_y A y.\n# TYPE tensorfs_y gauge\ntensorfs_y{mount=\"a\"} 2\ntensorfs_y{mount=\"b\"} 2\n";
        let x = |mount: &str| format!("tensorfs_x_bytes_total{{mount=\"{mount}\",kind=\"k\"}} 1\n");
        let x = x("a") + &x("b");
        let about = |name: &str| format!("# HELP {name} Bytes.\n# TYPE {name} counter\n{x}{y}{up}");
        assert_eq!(all.open_metrics(), about("tensorfs_x_bytes") + "# EOF\n");
        assert_eq!(all.prometheus(), about("tensorfs_x_bytes_total"));
    }
}
