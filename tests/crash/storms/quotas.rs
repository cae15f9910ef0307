//! Quotas of the host, in a guest: the kernel here may have none.

use std::fs::File;

use serde_json::Value;
use tensorfs_tests::skip;

use crate::guest::{BEGIN, Guest, prepared};

/// A way to limit a pool by a quota of its host: the filesystem, with whose quotas, and how the pool is mounted.
struct Limited {
    name: &'static str,
    host: &'static str,
    whose: &'static str,
    options: &'static str,
}

const fn limited(name: &'static str, host: &'static str, whose: &'static str, options: &'static str) -> Limited {
    Limited { name, host, whose, options }
}

const LIMITED: [Limited; 8] = [
    limited("user", "ext4", "user 0", "--passthrough on"),
    limited("user-off", "ext4", "user 0", "--passthrough off"),
    limited("project", "ext4", "project 7", "--passthrough on"),
    limited("project-off", "ext4", "project 7", "--passthrough off"),
    limited("project-keeper", "ext4", "project 7", "--passthrough on -o keeper"),
    limited("project-xfs", "xfs", "project 7", "--passthrough on"),
    limited("project-xfs-off", "xfs", "project 7", "--passthrough off"),
    limited("project-xfs-keeper", "xfs", "project 7", "--passthrough on -o keeper"),
];

/// In KiB.
const QUOTA: u64 = 40 << 10;

/// Proves B4, S2.
#[test]
fn a_quota_of_the_host_holds_whoever_moves_the_bytes() {
    let prepared = match prepared() {
        Ok(prepared) => prepared,
        Err(reason) => return skip("quotas", &reason),
    };
    let script = format!(
        r#"{BEGIN}
modprobe virtio_pci
modprobe virtio_blk
modprobe quota_v2
modprobe xfs
until [ -b /dev/vda ]; do sleep 0.1; done
host() {{
    case $1 in
    ext4) mkfs.ext4 -F -q -I 256 -O quota,project -E quotatype=usrquota:prjquota /dev/vda ;;
    xfs) mkfs.xfs -f -q /dev/vda ;;
    esac && mount -t $1 -o usrquota,prjquota /dev/vda /pool || exit 1
    mkdir /pool/limited
    tensorfs-test-storm in-project 7 /pool/limited || exit 1
}}
try() {{
    out=/share/$1 pool=/pool/limited/p
    host $2
    tensorfs-test-storm quota $3 $4 /dev/vda $((QUOTA << 10)) || exit 1
    shift 4
    tensorfs create $pool >/dev/null
    tensorfs mount $pool /mnt --log $out.log "$@" || exit 1
    tensorfs info --json /mnt >$out.info
    df -P -k /mnt | awk 'NR > 1 {{ print $2 }}' >$out.df
    case "$*" in
    # Another server takes over.
    *keeper*) kill -9 $(sed -n 's/^ *"pid": *\([0-9]*\).*/\1/p' $out.info | head -1) ;;
    esac
    echo kept >/mnt/kept
    dd if=/dev/zero of=/mnt/large bs=1M count=64 2>$out.large
    n=0
    while mkdir /mnt/directory-$n 2>$out.mkdir && [ $n -lt 100 ]; do n=$((n + 1)); done
    cat /mnt/kept /mnt/large >/dev/null && echo readable >$out.readable
    du -k -s $pool | awk '{{ print $1 }}' >$out.du
    rm /mnt/large && tensorfs sync /mnt
    dd if=/dev/zero of=/mnt/again bs=1M count=16 2>$out.dd && stat -c %s /mnt/again >$out.again
    # A limit of the pool's own that is larger: then the server moves the bytes.
    tensorfs resize /mnt 100M >/dev/null || exit 1
    dd if=/dev/zero of=/mnt/large bs=1M count=64 2>$out.limited
    df -P -k /mnt | awk 'NR > 1 {{ print $2, $4 }}' >$out.limited-df
    du -k -s $pool | awk '{{ print $1 }}' >$out.limited-du
    tensorfs umount /mnt || exit 1
    tensorfs check --data $pool >/dev/null 2>&1
    echo $? >$out.checked
    umount /pool
}}
"#
    );
    let tries = LIMITED.iter().map(|it| format!("try {} {} {} {}\n", it.name, it.host, it.whose, it.options));
    let script = script.replace("QUOTA", &QUOTA.to_string()) + &tries.collect::<String>() + "echo done >/share/done\n";
    let mut guest = Guest::new(prepared, &script);
    let disk = guest.path().join("disk");
    File::create_new(&disk).unwrap().set_len(400 << 20).unwrap();
    guest = guest.with_disk(&disk);
    guest.boot().wait();
    assert_eq!(guest.read("done").trim(), "done", "{}", guest.console());
    let mut wrong = Vec::new();
    for Limited { name, host, whose, options } in LIMITED {
        let read = |what: &str| guest.read(&format!("{name}.{what}")).trim().to_owned();
        let number = |what: &str| read(what).parse::<u64>().unwrap_or(u64::MAX);
        let (heard, of_project) = (read("large"), whose.starts_with("project"));
        let full = if host == "xfs" && of_project { "No space left on device" } else { "Disk quota exceeded" };
        let found = format!("{name}: dd: {heard:?}, df {} KiB, du {} KiB", read("df"), read("du"));
        eprintln!("{found}, with a limit {} {}", read("limited"), read("limited-df"));
        let info: Value = serde_json::from_str(&read("info")).unwrap_or_default();
        let holds = [
            info["passthrough"] == options.contains("passthrough on"),
            heard.contains(full) && read("limited").contains(full),
            number("du") <= QUOTA && number("limited-du") <= QUOTA,
            !of_project || number("df") <= QUOTA,
            read("mkdir").is_empty() && read("readable") == "readable",
            read("again") == "16777216",
            read("checked") == "0",
        ];
        if holds.contains(&false) {
            wrong.push(format!("{found}: {holds:?}\n{}", read("log")));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), guest.console());
}
