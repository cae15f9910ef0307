//! Globs of names and paths: what of a pool's tree is left out of its second copy.

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};

/// All globs have so many bytes together at most.
const MOST: usize = 8 << 10;
/// The longest path that a call takes. A longer one fits no glob with a slash.
const PATH_MAX: usize = 4095;

/// Globs, compiled: as those of the placement map, one without a slash fits a name in any directory, and one with a
/// slash a path from the root.
#[derive(Clone, Debug, Default)]
pub struct Globs {
    names: GlobSet,
    paths: GlobSet,
}

impl Globs {
    /// Compiles globs. One that can fit nothing is refused: whoever wrote it means something by it.
    ///
    /// # Errors
    /// Which glob is wrong, if it is one, and why.
    pub fn of(globs: &[String]) -> Result<Self, String> {
        if globs.iter().map(String::len).sum::<usize>() > MOST {
            return Err(format!(": more than {} KiB of globs", MOST >> 10));
        }
        let (mut names, mut paths) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for glob in globs {
            let wrong = |why: String| format!(" {glob:?}: {why}");
            let pattern = glob.strip_prefix('/').unwrap_or(glob);
            if pattern.ends_with('/') {
                return Err(wrong("a directory is named without a slash behind it".into()));
            }
            if pattern.split('/').any(|part| ["", ".", ".."].contains(&part)) {
                return Err(wrong("fits nothing: a path is names with a slash between them, from the root on".into()));
            }
            let compiled = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
            let compiled = compiled.map_err(|error| wrong(error.kind().to_string()))?;
            if glob.contains('/') {
                paths.add(compiled)
            } else {
                names.add(compiled)
            };
        }
        let built =
            |builder: GlobSetBuilder| builder.build().map_err(|error| format!(": all together: {}", error.kind()));
        Ok(Self { names: built(names)?, paths: built(paths)? })
    }

    /// True if a name that is at this path, from the root on, is left out for its own sake.
    pub fn fit(&self, name: &[u8], path: Option<&[u8]>) -> bool {
        let fits = |set: &GlobSet, text| !set.is_empty() && set.is_match_candidate(&Candidate::from_bytes(text));
        fits(&self.names, name) || path.is_some_and(|path| fits(&self.paths, path))
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.paths.is_empty()
    }

    /// True if paths are looked at.
    pub fn want_paths(&self) -> bool {
        !self.paths.is_empty()
    }
}

/// The path of a name, from the root on, without a slash in front; none if that is too long.
pub fn joined(dir: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let path = if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() };
    Some(path).filter(|path| path.len() <= PATH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(globs: &[&str], path: &str) -> bool {
        let globs = Globs::of(&globs.iter().map(|glob| (*glob).to_owned()).collect::<Vec<_>>()).unwrap();
        globs.fit(path.rsplit('/').next().unwrap().as_bytes(), Some(path.as_bytes()))
    }

    #[test]
    fn a_glob_fits_a_name_or_a_path() {
        for (globs, path, expected) in [
            (&["*.tmp"][..], "a/b/c.tmp", true),
            (&["cache"], "a/cache", true),
            (&["/cache"], "a/cache", false),
            (&["/cache"], "cache", true),
            (&["run/*"], "run/a", true),
            (&["run/*"], "run/a/b", false),
            (&["run/**"], "run/a/b", true),
            (&["run/**"], "run", false),
            (&["**/optimizer*"], "optimizer.bin", true),
            (&["**/optimizer*"], "a/b/optimizer.bin", true),
            (&["x", "*.log"], "y/a.log", true),
            (&["a{b,c}/[0-9]"], "ac/5", true),
            (&["q\\*"], "qq", false),
            (&[], "a", false),
        ] {
            assert_eq!(fits(globs, path), expected, "{globs:?} {path}");
        }
        assert!(Globs::of(&["*.tmp".into()]).unwrap().fit(b"\xff.tmp", None));
    }

    #[test]
    fn a_glob_that_can_fit_nothing_is_refused() {
        for glob in ["", "/", "cache/", "a//b", "./a", "a/../b", "[a", "{a"] {
            let said = Globs::of(&[glob.to_owned()]).unwrap_err();
            assert!(said.starts_with(&format!(" {glob:?}: ")) && said.lines().count() == 1, "{glob}: {said}");
        }
    }
}
