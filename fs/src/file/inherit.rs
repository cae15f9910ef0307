//! Files that are open as this server takes the place of one that died: the kernel and the programs go on with them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::caller::Caller;
use crate::error::{Fault, Result};
use crate::handover::{Entry, Kept};
use crate::store::Backing;

use super::Files;
use super::locked::Locked;
use super::mode::{Access, Changer, Manner, Mode, executes, is_synchronous};
use super::open::{Handle, OpenReply};
use super::state::Route;

impl Files {
    /// Takes over what the kernel has open. A handle that is not of a file as the pool has it is lost; whoever uses it
    /// gets `EBADF`.
    pub fn inherit(&self) {
        let Some(handover) = self.store().link().handover() else { return };
        let mut backings = HashMap::new();
        let (mut all, mut lost) = (0, 0);
        for (entry, kept) in handover.inherited() {
            all += 1;
            if let Err(fault) = self.inherit_one(entry, kept, &mut backings) {
                lost += 1;
                log::error!("inode {}: a handle of it is lost: {fault}", entry.ino);
            }
        }
        if all > 0 {
            log::info!("{all} open handles taken over, {lost} of them lost");
        }
    }

    fn inherit_one(&self, entry: Entry, kept: Kept, backings: &mut HashMap<u32, Arc<Backing>>) -> Result<()> {
        let link = self.store().link();
        let backing = match entry.backing {
            Some(id) if !backings.contains_key(&id) => {
                let backing = Arc::new(link.inherited(id).ok_or(Fault::new(libc::ENOTCONN))?);
                backings.insert(id, backing.clone());
                Some(backing)
            }
            Some(id) => backings.get(&id).cloned(),
            None => None,
        };
        let node = self.node(entry.ino);
        let mut file = self.lock(&node);
        match file.inherit(entry, backing, kept) {
            Ok(handle) => {
                drop(file);
                self.handles.insert_as(entry.handle, Arc::new(handle));
                self.before.inherited.lock().insert(entry.unique, (entry.handle, Manner::of_bits(entry.manner)));
                Ok(())
            }
            Err(fault) => {
                file.settle(0);
                Err(fault)
            }
        }
    }

    /// What was opened already for a request that comes again.
    pub fn opened_before(&self, caller: Caller) -> Option<OpenReply> {
        if !caller.again {
            return None;
        }
        let (number, manner) = self.before.inherited.lock().get(&caller.unique).copied()?;
        let handle = self.handles.get(number).ok()?;
        let backing = self.lock(&handle.node).serving().and_then(|serving| serving.route.backing().cloned());
        Some(OpenReply { handle: number, manner, backing })
    }
}

impl Locked<'_> {
    fn inherit(&mut self, entry: Entry, backing: Option<Arc<Backing>>, kept: Kept) -> Result<Handle> {
        let access = Access::of(entry.flags);
        let segment = self.attach_as_it_is()?;
        if backing.is_some() && segment != entry.segment {
            return Err(Fault::warn(libc::EBADF, "the kernel has another segment of it"));
        }
        let mode = if backing.is_some() { Mode::Passthrough } else { Mode::Server };
        let before = self.serving().map(|serving| (serving.route.mode(), serving.route.backing().map(|it| it.id())));
        if before.is_some_and(|(now, id)| now.is_some() && (now != Some(mode) || id != entry.backing)) {
            return Err(Fault::warn(libc::EBADF, "its handles do not agree on who moves its bytes"));
        }
        if access.write {
            self.start_watching(Changer::Handle(entry.flags))?;
            if entry.flags & libc::O_DIRECT != 0 {
                self.files.store().segments().expect_collisions(segment);
            }
            self.go_on_with_session();
        }
        let manner = Manner::of_bits(entry.manner);
        let asks = manner.direct_io && mode == Mode::Passthrough;
        if let Some(serving) = self.serving_mut() {
            serving.route = backing.map_or(Route::Server, Route::Kernel);
            serving.mappable |= access.read && access.write && mode == Mode::Passthrough;
            serving.mappers.note(0);
            serving.asked |= asks && access.write;
            if access.write {
                // It may have been written since recovery looked at it.
                serving.seen = None;
            }
        }
        let executes = executes(entry.flags);
        self.state.opens.count(access, executes);
        let served = asks || mode == Mode::Server;
        let node = self.node.clone();
        Ok(Handle {
            node,
            access,
            served,
            direct: manner.direct_io,
            synchronous: is_synchronous(entry.flags),
            executes,
            opener: entry.opener,
            before: None,
            replaces: true,
            // Nobody knows who opened it.
            _share: None,
            kept: Mutex::new(Some(kept)),
        })
    }
}
