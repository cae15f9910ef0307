//! What a server leaves to the next one: bytes that nobody trusts.
//!
//! | bytes | what |
//! |---|---|
//! | 2 | the length of the head; 65535 stands for one that is right |
//! | so many | the head |
//! | 1 | how many handles there are |
//! | 61 each | whether its checksum is right (an even byte), and the handle |
//! | 1 | how many objects of the control tree there are |
//! | 61 each | the same; with the second bit its number is that of what it says |
//! | 1 | how many open files of the control tree there are |
//! | 63 each | the same; with the second bit it is of one of those objects; and the length of its text |
//! | so many | the texts |
//! | the rest | numbers of segments |

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use tempfile::TempDir;
use tensorfs_fs::Durability;
use tensorfs_fs::testing::{Direct, LeftBehind};
use tensorfs_layout::pool::{CreateOptions, OpenOptions, Pool};
use tensorfs_layout::{Ino, ROOT};

use crate::samples::safetensors;

const FILES: usize = 4;
/// A file of tensors, and where these are in the control tree.
const TENSORS: &str = "t.safetensors";
const NAMES: [&str; 2] = ["a.npy", "b.npy"];
/// The directory, the pipe, the link, and numbers that are nothing.
const OTHERS: u64 = 6;

/// A pool that is never closed, and what its files hold.
struct Room {
    _dir: TempDir,
    pool: Arc<Pool>,
    files: HashMap<Ino, Vec<u8>>,
    segments: Vec<u64>,
    /// The file of tensors, and what is read of each.
    tensors: (Ino, Vec<Vec<u8>>),
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
        let (of_tensors, handle) = direct.create(ROOT, TENSORS, 0o600).unwrap();
        let bytes = safetensors(&[("a", b"tensor a"), ("b", &[7; 500])]);
        direct.write(handle, 0, &bytes).unwrap();
        direct.close(handle).unwrap();
        files.insert(of_tensors, bytes);
        direct.make(ROOT, "d", libc::S_IFDIR | 0o700).unwrap();
        direct.make(ROOT, "p", libc::S_IFIFO | 0o600).unwrap();
        direct.symlink(ROOT, "l", "f0").unwrap();
        let next = Direct::take_over(pool.clone(), LeftBehind::default()).unwrap();
        let read = |name| {
            let handle = next.open_view(next.look_up(&["tensors", TENSORS, name]).unwrap()).unwrap();
            next.read_view(handle, 1 << 16).unwrap()
        };
        let tensors = (of_tensors, NAMES.map(read).to_vec());
        Room { _dir: dir, pool, files, segments, tensors }
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
    let (handles, rest) = slips(rest, 0);
    let handles: Vec<_> = handles.into_iter().map(|(flags, slip, _)| (slip, flags % 2 == 0)).collect();
    let (shown, rest) = slips(rest, 0);
    let shown: Vec<_> = shown.into_iter().map(|(flags, slip, _)| (with_number(slip, flags), flags % 2 == 0)).collect();
    let (views, mut rest) = slips(rest, 2);
    let mut texts = Vec::new();
    let mut open = Vec::new();
    for (flags, mut slip, len) in views {
        if let Some((of, _)) = shown.get(usize::from(slip[16])).filter(|_| flags & 2 != 0) {
            slip[16..24].copy_from_slice(&of[..8]);
        }
        open.push((slip, flags % 2 == 0));
        let (text, more) = rest.split_at(usize::from(u16::from_le_bytes([len[0], len[1]])).min(rest.len()));
        (texts, rest) = ([&texts[..], &[text]].concat(), more);
    }
    let numbers = &rest[..rest.len().min(1 << 16)];
    let left = LeftBehind { head, handles: &handles, numbers, shown: &shown, views: &open, texts: &texts };
    let Ok(direct) = Direct::take_over(room.pool.clone(), left) else { return };
    for (handle, right) in &handles {
        let Ok(ino) = direct.file_of(number(handle, 8)) else { continue };
        // Of two with one number one counts.
        let said = handles.iter().filter(|(other, right)| *right && number(other, 8) == number(handle, 8));
        assert!(said.clone().any(|(other, _)| number(other, 16) == ino.0), "{ino} is of no handle");
        let held = room.files.get(&ino).unwrap_or_else(|| panic!("{ino} is no file ({right})"));
        if let Ok(read) = direct.read(number(handle, 8), 1000) {
            assert_eq!(read, held[..held.len().min(1000)]);
        }
    }
    for (view, _) in &open {
        let Ok(read) = direct.read_view(number(view, 8), 1 << 16) else { continue };
        let said =
            || open.iter().enumerate().filter(|(_, (other, right))| *right && number(other, 8) == number(view, 8));
        let is_text = |(place, (slip, _)): (usize, &([u8; 60], bool))| {
            let len = number(slip, 48) as u32;
            let padded = texts[place].iter().copied().chain(std::iter::repeat(0)).take((len as usize).min(1 << 16));
            len != u32::MAX && padded.eq(read.iter().copied())
        };
        let is_tensor = |(_, (slip, _)): (usize, &([u8; 60], bool))| {
            let of = shown.iter().filter(|(of, right)| *right && number(of, 0) == number(slip, 16));
            let mut nth = of.filter(|(of, _)| number(of, 8) == room.tensors.0.0).map(|(of, _)| number(of, 32));
            nth.any(|nth| usize::try_from(nth).ok().and_then(|nth| room.tensors.1.get(nth)) == Some(&read))
        };
        assert!(said().any(is_text) || said().any(is_tensor), "it is what nobody said that it is: {read:?}");
    }
    shown.iter().for_each(|(slip, _)| direct.look_at(Ino(number(slip, 0))));
    handles.iter().for_each(|(handle, _)| direct.release(number(handle, 8)));
    open.iter().for_each(|(view, _)| direct.release_view(number(view, 8)));
}

fn number(bytes: &[u8; 60], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// What is to stand in a place: its flags, and what there is more.
type Place<'a> = (u8, [u8; 60], &'a [u8]);

/// What is to stand in places, each with its flags and so many bytes more; and the rest.
fn slips(bytes: &[u8], more: usize) -> (Vec<Place<'_>>, &[u8]) {
    let Some((count, mut rest)) = bytes.split_first() else { return (Vec::new(), bytes) };
    let mut found = Vec::new();
    for _ in 0..*count {
        let Some((one, behind)) = rest.split_at_checked(61 + more) else { break };
        found.push((one[0], one[1..61].try_into().unwrap(), &one[61..]));
        rest = behind;
    }
    (found, rest)
}

fn with_number(mut slip: [u8; 60], flags: u8) -> [u8; 60] {
    if let Some(number) = Direct::right_number(&slip).filter(|_| flags & 2 != 0) {
        slip[..8].copy_from_slice(&number.0.to_le_bytes());
    }
    slip
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
        seeds.push([&head[..], &[handles.len() as u8], &handles.concat(), &[0, 0], &numbers].concat());
        for handle in handles.into_iter().step_by(4) {
            seeds.push([&head[..], &[1], &handle, &[0, 0], &numbers].concat());
        }
    }
    seeds.extend(of_control());
    let head = b"{\"format\":\"tensorfs handover 1\",\"server\":7,\"pool\":{\"since\":1,\"damaged\":[1]},\
                 \"greeting\":[1],\"answer\":[2]}";
    seeds.push([&(head.len() as u16).to_le_bytes()[..], head, &[0, 0, 0]].concat());
    seeds
}

/// Tensors, directories of them, and texts.
fn of_control() -> Vec<Vec<u8>> {
    let room = room();
    let direct = Direct::take_over(room.pool.clone(), LeftBehind::default()).unwrap();
    for name in NAMES {
        direct.open_view(direct.look_up(&["tensors", TENSORS, name]).unwrap()).unwrap();
    }
    direct.open_view(direct.look_up(&["README"]).unwrap()).unwrap();
    let [shown, views] = direct.leaves().unwrap();
    assert!(shown.len() == 1 + NAMES.len() && views.len() == NAMES.len() + 1, "{} {}", shown.len(), views.len());
    let objects: Vec<_> = shown.iter().map(|slip| [&[2], &slip[..]].concat()).collect();
    let mut files = Vec::new();
    for view in &views {
        let of = shown.iter().position(|slip| slip[..8] == view[16..24]);
        let mut view = *view;
        view[16..24].copy_from_slice(&(of.unwrap_or(255) as u64).to_le_bytes());
        files.push([&[if of.is_some() { 2 } else { 0 }], &view[..], &30_u16.to_le_bytes()].concat());
    }
    // A text as long as it says, and one that is not there.
    for len in [30_u32, 1 << 20] {
        let mut view = [0; 60];
        view[8..16].copy_from_slice(&u64::from(len).to_le_bytes());
        view[48..52].copy_from_slice(&len.to_le_bytes());
        files.push([&[0], &view[..], &30_u16.to_le_bytes()].concat());
    }
    let head = [&u16::MAX.to_le_bytes()[..], &[0]].concat();
    let all = |objects: &[Vec<u8>], files: &[Vec<u8>]| {
        let counted = |slips: &[Vec<u8>]| [&[slips.len() as u8], &slips.concat()[..]].concat();
        [&head[..], &counted(objects), &counted(files), &[b'x'; 30].repeat(files.len())].concat()
    };
    let mut seeds = vec![all(&objects, &files), all(&objects, &[]), all(&[], &files)];
    seeds.extend(objects.iter().map(|object| all(std::slice::from_ref(object), &files)));
    seeds.extend(files.iter().map(|file| all(&objects, std::slice::from_ref(file))));
    // Directories and ordinals that are none, a file that is another one, and a checkpoint in parts.
    for (object, at, byte) in [(0, 17, 9), (1, 33, 9), (1, 9, 1), (0, 57, 0xff), (1, 57, 0xfe), (2, 60, 0x80)] {
        let mut objects = objects.clone();
        objects[object][at] ^= byte;
        seeds.push(all(&objects, &files));
    }
    seeds
}
