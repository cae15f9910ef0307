//! Metrics of several mounts in one text: what each server says, put together family by family.

use std::fmt::Write;

/// The families of several OpenMetrics texts, in the order in which they came first.
#[derive(Debug, Default)]
pub struct Families(Vec<Family>);

#[derive(Debug)]
struct Family {
    name: String,
    /// What kind it is of, and what it means: lines that begin with `#`.
    about: Vec<String>,
    samples: Vec<String>,
}

impl Families {
    /// Adds what a server says of one mount.
    pub fn add(&mut self, text: &str) {
        let mut at = None;
        for line in text.lines().filter(|line| !line.is_empty() && *line != "# EOF") {
            let Some(about) = line.strip_prefix("# ") else {
                if let Some(at) = at {
                    self.at(at).samples.push(line.to_owned());
                }
                continue;
            };
            let name = about.split(' ').nth(1).unwrap_or_default();
            let found = self.0.iter().position(|family| family.name == name);
            let is_new = found.is_none();
            if is_new {
                self.0.push(Family { name: name.to_owned(), about: Vec::new(), samples: Vec::new() });
            }
            let index = found.unwrap_or(self.0.len() - 1);
            at = Some(index);
            let family = self.at(index);
            // Of the same family, the first one has said it.
            if family.samples.is_empty() && !family.about.iter().any(|said| said == line) {
                family.about.push(line.to_owned());
            }
        }
    }

    fn at(&mut self, index: usize) -> &mut Family {
        &mut self.0[index]
    }

    /// Whether the server of each mount answers.
    pub fn add_up<'m>(&mut self, mounts: impl IntoIterator<Item = (&'m str, bool)>) {
        let mut text = "# HELP tensorfs_up 1 if the mount's server answers.\n# TYPE tensorfs_up gauge\n".to_owned();
        for (mount, up) in mounts {
            let mount = mount.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = writeln!(text, "tensorfs_up{{mount=\"{mount}\"}} {}", u8::from(up));
        }
        self.add(&text);
    }

    /// As OpenMetrics text.
    pub fn open_metrics(&self) -> String {
        let lines = self.0.iter().flat_map(|family| family.about.iter().chain(&family.samples));
        lines.map(|line| format!("{line}\n")).chain(["# EOF\n".to_owned()]).collect()
    }

    /// In Prometheus' own format, which node exporter reads: there a counter is called as its samples are.
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        for family in &self.0 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_of_two_mounts_is_one() {
        let of = |mount: &str| {
            format!(
                "# HELP x_bytes Bytes.\n# TYPE x_bytes counter\nx_bytes_total{{m=\"{mount}\"}} 1\n# HELP y A y.\n\
                 # TYPE y gauge\ny{{m=\"{mount}\"}} 2\n# EOF\n"
            )
        };
        let mut all = Families::default();
        all.add(&of("a"));
        all.add(&of("b"));
        all.add_up([("a\"", true), ("b", false)]);
        let about_up = "# HELP tensorfs_up 1 if the mount's server answers.\n# TYPE tensorfs_up gauge\n";
        let up = format!("{about_up}tensorfs_up{{mount=\"a\\\"\"}} 1\ntensorfs_up{{mount=\"b\"}} 0\n");
        let y = "# HELP y A y.\n# TYPE y gauge\ny{m=\"a\"} 2\ny{m=\"b\"} 2\n";
        let x = "x_bytes_total{m=\"a\"} 1\nx_bytes_total{m=\"b\"} 1\n";
        assert_eq!(all.open_metrics(), format!("# HELP x_bytes Bytes.\n# TYPE x_bytes counter\n{x}{y}{up}# EOF\n"));
        assert_eq!(all.prometheus(), format!("# HELP x_bytes_total Bytes.\n# TYPE x_bytes_total counter\n{x}{y}{up}"));
    }
}
