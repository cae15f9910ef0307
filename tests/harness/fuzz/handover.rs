//! What a server leaves to the next one: bytes that nobody trusts.
//!
//! | bytes | what |
//! |---|---|
//! | 2 | the length of the head; 65535 stands for one that is right |
//! | so many | the head |
//! | 1 | how many handles there are |
//! | 61 each | whether its checksum is right (an even byte), and the handle |
//! | the rest | numbers of segments |

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use tempfile::TempDir;
use tensorfs_fs::Durability;
use tensorfs_fs::testing::Direct;
use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};
use tensorfs_layout::{Ino, ROOT};

const FILES: usize = 4;
/// The directory, the pipe, the link, and numbers that are nothing.
const OTHERS: u64 = 6;

/// A pool that is never closed, and what its files hold.
struct Room {
    _dir: TempDir,
    pool: Arc<Pool>,
    files: HashMap<Ino, Vec<u8>>,
    segments: Vec<u64>,
}

fn room() -> &'static Room {
    static ROOM: OnceLock<Room> = OnceLock::new();
    ROOM.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        Pool::create(&path, &CreateOptions::default()).unwrap();
        let pool = Arc::new(Pool::open(&path, &OpenOptions::default()).unwrap());
        let direct = Direct::new(pool.clone(), Durability::Fsync);
        let (mut files, mut segments) = (HashMap::new(), Vec::new());
        for n in 0..FILES {
            let (ino, handle) = direct.create(ROOT, &format!("f{n}"), 0o600).unwrap();
            let (bytes, segment) = (vec![n as u8; 100 + n], direct.segment(handle).unwrap());
            let fd = pool.segments().open(segment, libc::O_WRONLY).unwrap();
            std::fs::File::from(fd).write_all_at(&bytes, 0).unwrap();
            direct.close(handle).unwrap();
            files.insert(ino, bytes);
            segments.push(segment.0);
        }
        direct.make(ROOT, "d", libc::S_IFDIR | 0o700).unwrap();
        direct.make(ROOT, "p", libc::S_IFIFO | 0o600).unwrap();
        direct.symlink(ROOT, "l", "f0").unwrap();
        Room { _dir: dir, pool, files, segments }
    })
}

/// A handle is one of the file that it says it is, or none.
pub fn run(bytes: &[u8]) {
    let room = room();
    let Some((len, rest)) = bytes.split_first_chunk() else { return };
    let len = u16::from_le_bytes(*len);
    let (head, rest) = match len {
        u16::MAX => (None, rest),
        _ => {
            let (head, rest) = rest.split_at(usize::from(len).min(rest.len()));
            (Some(head), rest)
        }
    };
    let Some((count, mut rest)) = rest.split_first() else { return };
    let mut handles = Vec::new();
    for _ in 0..*count {
        let Some((one, more)) = rest.split_first_chunk::<61>() else { break };
        let handle: [u8; 60] = one[1..].try_into().unwrap();
        handles.push((handle, one[0] % 2 == 0));
        rest = more;
    }
    let numbers = &rest[..rest.len().min(1 << 16)];
    let Ok(direct) = Direct::take_over(room.pool.clone(), head, &handles, numbers) else { return };
    let number = |bytes: &[u8; 60], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    for (handle, right) in &handles {
        let Ok(ino) = direct.file_of(number(handle, 8)) else { continue };
        // Of two with one number one counts.
        let said = handles.iter().filter(|(other, right)| *right && number(other, 8) == number(handle, 8));
        assert!(said.clone().any(|(other, _)| number(other, 16) == ino.0), "{ino} is of no handle");
        let held = room.files.get(&ino).unwrap_or_else(|| panic!("{ino} is no file ({right})"));
        if let Ok(read) = direct.read(number(handle, 8), 1000) {
            assert_eq!(read, *held);
        }
    }
    handles.iter().for_each(|(handle, _)| direct.release(number(handle, 8)));
}

/// Handles of each file, and of what is none.
pub fn seeds() -> Vec<Vec<u8>> {
    let room = room();
    let mut inos: Vec<u64> = room.files.keys().map(|ino| ino.0).collect();
    inos.sort_unstable();
    let last = inos[FILES - 1];
    inos.extend((last + 1..last + OTHERS).chain([0, ROOT.0, u64::MAX]));
    let mut seeds = Vec::new();
    for backing in [0_u32, 1] {
        let mut handles = Vec::new();
        for (n, ino) in inos.iter().enumerate() {
            let segment = room.segments[n % FILES];
            for (m, flags) in [libc::O_RDONLY, libc::O_RDWR, libc::O_WRONLY | libc::O_APPEND].into_iter().enumerate() {
                let handle = (n * 10 + m) as u64;
                let mut bytes = vec![0; 61];
                bytes[1..9].copy_from_slice(&(2 * handle).to_le_bytes());
                bytes[9..17].copy_from_slice(&handle.to_le_bytes());
                bytes[17..25].copy_from_slice(&ino.to_le_bytes());
                bytes[25..33].copy_from_slice(&segment.to_le_bytes());
                bytes[33..37].copy_from_slice(&flags.to_le_bytes());
                bytes[37..41].copy_from_slice(&backing.to_le_bytes());
                handles.push(bytes);
            }
        }
        let numbers = (u64::from(backing) | u64::from(!backing) << 32).to_le_bytes();
        let head = u16::MAX.to_le_bytes();
        seeds.push([&head[..], &[handles.len() as u8], &handles.concat(), &numbers].concat());
        for handle in handles.into_iter().step_by(4) {
            seeds.push([&head[..], &[1], &handle, &numbers].concat());
        }
    }
    let head = b"{\"format\":\"tensorfs handover 1\",\"server\":7,\"pool\":{\"since\":1,\"damaged\":[1]},\
                 \"greeting\":[1],\"answer\":[2]}";
    seeds.push([&(head.len() as u16).to_le_bytes()[..], head, &[0]].concat());
    seeds
}
