//! The bytes of an object as they come, a piece at a time: nobody has memory for all of them. The kernel takes as long
//! to give and to take back a large buffer as the bytes take to come.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{GetResultPayload, ObjectStore, ObjectStoreExt};

use super::{ANSWER, Coming, LARGEST, Place, got, not_done, opened, too_large, within};
use crate::crypt::Cipher;
use crate::error::{Error, Result};

/// So many bytes are handed over at a time: they are near the processor yet when they are used for the second time.
const PIECE: usize = 512 << 10;

/// What an object's bytes are handed to, in order. It may wait for a disk.
pub trait Sink: Send + 'static {
    /// What is made of them.
    type Made: Send + 'static;

    /// The next ones. After an error there are no more.
    fn take(&mut self, piece: &[u8]) -> io::Result<()>;

    /// That was all.
    fn end(self) -> Self::Made;
}

impl Place {
    /// Has an object come, beside whoever asks for it, into a sink. One that is encrypted is in memory until it is
    /// whole: only then anything of it is known.
    pub fn pour<S: Sink>(&self, name: &str, sink: S) -> Coming<io::Result<S::Made>> {
        let (store, path, object) = (self.store.clone(), self.path(name), self.object(name));
        let (cipher, name) = (self.cipher.clone(), name.to_owned());
        let task = self.runtime.spawn(async move {
            match cipher {
                Some(cipher) => whole(got(store, path, object).await?, (cipher, name), sink).await,
                None => pieces(store, path, object, sink).await,
            }
        });
        Coming { task, runtime: self.runtime.clone() }
    }
}

/// An encrypted object.
async fn whole<S: Sink>(
    bytes: Option<Bytes>,
    (cipher, name): (Cipher, String),
    mut sink: S,
) -> Result<Option<io::Result<S::Made>>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let poured = tokio::task::spawn_blocking(move || {
        let bytes = opened(&cipher, &name, bytes)?;
        let taken = bytes.chunks(PIECE).try_for_each(|piece| sink.take(piece));
        Ok(Some(taken.map(|()| sink.end())))
    });
    poured.await.unwrap_or_else(|error| Err(not_done(&error)))
}

/// What the store has as it is to be.
async fn pieces<S: Sink>(
    store: Arc<dyn ObjectStore>,
    path: Path,
    object: String,
    sink: S,
) -> Result<Option<io::Result<S::Made>>> {
    let failed = |source| Error::Store { object: object.clone(), what: "read", source };
    let found = match within(ANSWER, store.get(&path)).await {
        Ok(found) if found.meta.size > LARGEST => return Err(too_large(&object, found.meta.size)),
        Ok(found) => found,
        Err(object_store::Error::NotFound { .. }) => return Ok(None),
        Err(source) => return Err(failed(source)),
    };
    match found.payload {
        GetResultPayload::Stream(stream) => poured(stream, sink, failed).await.map(Some),
        GetResultPayload::File(file, _) => {
            let host = move |source| Error::Host { path: object, what: "read", source };
            let poured = tokio::task::spawn_blocking(move || of_file(&file, found.meta.size, sink)).await;
            poured.map_err(|error| not_done(&error))?.map(Some).map_err(host)
        }
    }
}

async fn poured<S: Sink>(
    mut stream: BoxStream<'static, object_store::Result<Bytes>>,
    mut sink: S,
    failed: impl Fn(object_store::Error) -> Error,
) -> Result<io::Result<S::Made>> {
    let mut piece = Vec::with_capacity(PIECE);
    while let Some(mut next) = within(ANSWER, stream.try_next()).await.map_err(&failed)? {
        while !next.is_empty() {
            piece.extend_from_slice(&next.split_to(next.len().min(PIECE - piece.len())));
            if piece.len() < PIECE {
                continue;
            }
            let taken;
            (taken, sink, piece) = handed_over(sink, piece).await?;
            if let Err(error) = taken {
                return Ok(Err(error));
            }
        }
    }
    let (taken, sink, _) = handed_over(sink, piece).await?;
    Ok(taken.map(|()| sink.end()))
}

/// A sink may wait for long: other objects go on to come meanwhile.
async fn handed_over<S: Sink>(mut sink: S, mut piece: Vec<u8>) -> Result<(io::Result<()>, S, Vec<u8>)> {
    let done = tokio::task::spawn_blocking(move || {
        let taken = sink.take(&piece);
        piece.clear();
        (taken, sink, piece)
    });
    done.await.map_err(|error| not_done(&error))
}

/// Of a file with so many bytes, of which somebody else may take some meanwhile.
fn of_file<S: Sink>(file: &File, size: u64, mut sink: S) -> io::Result<io::Result<S::Made>> {
    let (mut piece, mut at) = (vec![0; PIECE.min(size as usize)], 0);
    while at < size {
        let some = &mut piece[..PIECE.min((size - at) as usize)];
        file.read_exact_at(some, at)?;
        if let Err(error) = sink.take(some) {
            return Ok(Err(error));
        }
        at += some.len() as u64;
    }
    Ok(Ok(sink.end()))
}
