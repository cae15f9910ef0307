//! Which tier a file is made in, and the paths and names that it takes to say so.

use tensorfs_layout::log::{PM, REMOTE_NAME, Tier};
use tensorfs_layout::tree::View;
use tensorfs_layout::{Ino, ROOT};

use crate::error::{Fault, Result};

use super::Store;
use super::placement::{Name, Rules};
use super::reserved::TIER;

impl Store {
    /// True of the name of the pool's own remote, which files leave for: also if it is no tier yet, as none has.
    pub fn is_own_remote(&self, name: &str) -> bool {
        if name != REMOTE_NAME {
            return false;
        }
        let known = {
            let view = self.pool.view();
            let named = view.tier_named(name).and_then(|number| view.tier(number));
            named.map(Tier::is_own_remote)
        };
        known.unwrap_or_else(|| self.pool.has_second_copy())
    }

    /// A file was looked up.
    pub fn saw(&self, dir: Ino, name: &[u8], ino: Ino) {
        self.placement.saw(dir, name, ino);
    }

    /// Objects were moved: paths that lead through directories among them are others now.
    pub fn moved(&self, objects: impl IntoIterator<Item = Ino>) {
        if !self.placement.has_tiers() {
            return;
        }
        let any_directory = {
            let view = self.pool.view();
            objects.into_iter().any(|ino| view.object(ino).is_none_or(tensorfs_layout::tree::Object::is_dir))
        };
        if any_directory {
            self.placement.forget_paths();
        }
    }

    /// The path of a file by the name under which it was last looked up.
    pub fn known_path(&self, view: &View, ino: Ino) -> Option<Vec<u8>> {
        self.placement.known_path(view, ino)
    }

    /// True if a file is still there under the name under which it was last looked up.
    pub fn knows_name(&self, view: &View, ino: Ino) -> bool {
        self.placement.name(ino).is_some_and(|(dir, name)| view.lookup(dir, &name) == Some(ino))
    }

    /// The path of a name in a directory, if it is none that is too long for any call.
    pub fn path_in(&self, view: &View, dir: Ino, name: &[u8]) -> Option<Vec<u8>> {
        self.placement.path(view, dir, name)
    }

    /// The tier of a file that is made under this name.
    pub fn place(&self, dir: Ino, name: &[u8]) -> u8 {
        if !self.placement.has_tiers() {
            return PM;
        }
        let rules = self.placement.rules();
        let view = self.pool.view();
        let own = view.object(dir).and_then(|dir| dir.xattr(TIER)).and_then(|name| std::str::from_utf8(name).ok());
        if own == Some(REMOTE_NAME) && view.tier_named(REMOTE_NAME).is_none() {
            return PM;
        }
        let wanted = own.and_then(|name| view.tier_named(name)).or_else(|| {
            if rules.is_empty() {
                return None;
            }
            view.tier_named(rules.tier(name, || self.placement.path(&view, dir, name))?)
        });
        let tier = wanted.unwrap_or(PM);
        if self.pool.segments().is_there(tier) {
            return tier;
        }
        // It leaves for there when it was carried.
        let is_to_leave = view.tier(tier).is_some_and(|tier| tier.remote);
        if !is_to_leave && self.placement.say() {
            log::warn!("tier {} is missing: files that belong there are made in pm", view.tier_name(tier));
        }
        PM
    }

    /// The tier of a file that gets new bytes.
    pub fn place_again(&self, ino: Ino) -> u8 {
        if !self.placement.has_tiers() {
            return PM;
        }
        let seen = self.placement.name(ino);
        let seen = seen.filter(|(dir, name)| self.pool.view().lookup(*dir, name) == Some(ino));
        match seen.or_else(|| self.search(ino)) {
            Some((dir, name)) => {
                self.saw(dir, &name, ino);
                self.place(dir, &name)
            }
            None => PM,
        }
    }

    /// A name of a file, for which the whole tree may have to be searched.
    fn search(&self, ino: Ino) -> Option<Name> {
        let view = self.pool.view();
        let path = view.path_of(ino)?;
        let mut parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).peekable();
        let mut dir = ROOT;
        loop {
            let part = parts.next()?;
            if parts.peek().is_none() {
                return Some((dir, part.into()));
            }
            dir = view.lookup(dir, part)?;
        }
    }

    /// Replaces the placement map, durably. One that is wrong changes nothing, and gives `EINVAL`.
    pub fn replace_placement(&self, text: &[u8]) -> Result<()> {
        let _replacing = self.placement.replacing();
        let invalid = |why: String| Fault { level: log::Level::Info, ..Fault::warn(libc::EINVAL, why) };
        let text = std::str::from_utf8(text).map_err(|_| invalid("a placement map is text".into()))?;
        let is_tier = |name: &str| {
            let is_known = self.pool.view().tier_named(name).is_some();
            is_known || self.is_own_remote(name)
        };
        let rules = Rules::parse(text, is_tier).map_err(invalid)?;
        self.pool.set_placement(text)?;
        self.placement.set_rules(rules);
        log::info!("{}: a new placement map of {} lines", self.pool.path().display(), text.lines().count());
        Ok(())
    }
}
