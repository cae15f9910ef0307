//! A thread with a table of descriptors of its own: what clients of this process have open, its children have not. They
//! would close that as they execute a program, and nobody would answer.

use std::sync::mpsc::{Sender, channel};
use std::thread;

use nix::sched::{CloneFlags, unshare};

type Work<S> = Box<dyn FnOnce(&mut S) + Send>;

/// Does what it is told, with something that is its own.
pub struct Host<S>(Sender<Work<S>>);

impl<S> Clone for Host<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Default + 'static> Host<S> {
    pub fn begin() -> Self {
        let (tell, told) = channel::<Work<S>>();
        let (ready, begun) = channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_FILES).unwrap();
            // SAFETY: takes integers, and nothing of this thread has any of the descriptors.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            ready.send(()).unwrap();
            let mut own = S::default();
            told.into_iter().for_each(|work| work(&mut own));
        });
        begun.recv().unwrap();
        Self(tell)
    }

    pub fn run<T: Send + 'static>(&self, work: impl FnOnce(&mut S) -> T + Send + 'static) -> T {
        let (tell, told) = channel();
        self.0.send(Box::new(move |own| drop(tell.send(work(own))))).unwrap();
        told.recv().unwrap()
    }
}
