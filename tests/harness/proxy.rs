//! A proxy before a store that is spoken with by HTTP: it counts requests, and answers some of them as a bad network or
//! a bad day of the store would. `remote/tests` have it, too.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::random::Random;

/// What S3's and Google's stores say of a place with nothing in it, and what Azure's says.
const EMPTY: &str = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
const EMPTY_OF_AZURE: &str = "<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>";
/// What is in the query of a listing, whichever store is asked for it (`list-type=2`, `comp=list`).
pub const LISTING: &str = "list";
/// What stores say on bad days.
const BAD_DAY: [(u16, &str); 5] =
    [(500, "InternalError"), (503, "SlowDown"), (403, "AccessDenied"), (404, "NoSuchKey"), (409, "OperationAborted")];

/// A path of the proxy that is the store's root, and which the store is told of.
pub const BELOW: &str = "/below";

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// It is done after so long.
    Delay(Duration),
    /// Of its body so many bytes arrive, and then nobody hears of it again.
    CutRequest(usize),
    /// It is done, and of the answer's body so many bytes arrive; `None`: nothing of the answer does.
    CutAnswer(Option<usize>),
    /// Nobody does it, and this is the answer: a status, and a word of the store's.
    Say(u16, &'static str),
    /// A byte of what is put is another one when it arrives.
    SpoilRequest,
    /// A byte of what is got is.
    SpoilAnswer,
    /// A listing is as it was when such a fault was asked for first.
    Stale,
}

/// Which requests have a fault.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Those of this method; of each, if it is empty.
    pub method: &'static str,
    /// With this in their path or query.
    pub part: &'static str,
    /// But for so many at first.
    pub skip: u32,
    /// So many then.
    pub times: u32,
    /// Which.
    pub fault: Fault,
}

impl Rule {
    /// For each of them.
    pub fn all(method: &'static str, part: &'static str, fault: Fault) -> Self {
        Self { method, part, skip: 0, times: u32::MAX, fault }
    }

    /// For the first one.
    pub fn once(method: &'static str, part: &'static str, fault: Fault) -> Self {
        Self { times: 1, ..Self::all(method, part, fault) }
    }
}

/// A request as another store understands it, and what the answer to it lacks.
#[derive(Debug)]
pub struct Translated {
    /// Its lines, without the empty one.
    pub head: String,
    /// What follows.
    pub body: Vec<u8>,
    /// Lines that are added to the answer's head, each with a line's end before it.
    pub answered_with: &'static str,
}

/// What makes another request of one, if that has to be.
type Translation = fn(&str, &[u8]) -> Option<Translated>;

/// The proxy.
#[derive(Debug)]
pub struct Proxy {
    store: String,
    translation: Translation,
    address: String,
    rules: Mutex<Vec<Rule>>,
    /// Of a hundred requests so many have a fault that is drawn.
    drawn: Mutex<(u64, Random)>,
    asked: Mutex<Vec<String>>,
    /// Whether bytes that are put are among what is drawn.
    spoils_puts: AtomicBool,
    /// The last answers to listings.
    listings: Mutex<HashMap<String, Vec<u8>>>,
}

impl Proxy {
    /// Starts one before a store at an address.
    pub fn start(store: &str) -> Arc<Self> {
        Self::translating(store, |_, _| None)
    }

    /// As above, before one that understands requests of another kind.
    pub fn translating(store: &str, translation: Translation) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Arc::new(Self {
            store: store.to_owned(),
            translation,
            address: listener.local_addr().unwrap().to_string(),
            rules: Mutex::default(),
            drawn: Mutex::new((0, Random::new(0))),
            asked: Mutex::default(),
            spoils_puts: AtomicBool::new(true),
            listings: Mutex::default(),
        });
        let this = proxy.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let this = this.clone();
                std::thread::spawn(move || this.serve(client));
            }
        });
        proxy
    }

    /// As `--endpoint` takes it.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on there are these faults; none, if there are no rules.
    pub fn faults(&self, rules: &[Rule]) {
        *self.rules.lock().unwrap() = rules.to_vec();
        self.drawn.lock().unwrap().0 = 0;
    }

    /// From now on so many of a hundred requests have a fault that is drawn.
    pub fn draw(&self, percent: u64, seed: u64) {
        *self.drawn.lock().unwrap() = (percent, Random::new(seed));
    }

    /// Whether what is put may be spoiled by a fault that is drawn: not all stores would find that out.
    pub fn spoil_puts(&self, may_be: bool) {
        self.spoils_puts.store(may_be, Ordering::Relaxed);
    }

    /// What was asked for since this was called last: methods, and paths with their queries.
    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    fn fault(&self, method: &str, path: &str) -> Option<Fault> {
        // Google's store is told a whole name as one part of the path.
        let (name, query) = path.split_once('?').unwrap_or((path, ""));
        let path = format!("{}?{query}", name.replace("%2F", "/"));
        let mut rules = self.rules.lock().unwrap();
        let fits = |rule: &&mut Rule| method.starts_with(rule.method) && path.contains(rule.part) && rule.times > 0;
        if let Some(rule) = rules.iter_mut().find(fits) {
            if rule.skip > 0 {
                rule.skip -= 1;
                return None;
            }
            rule.times -= 1;
            return Some(rule.fault);
        }
        let (percent, random) = &mut *self.drawn.lock().unwrap();
        if random.below(100) >= *percent {
            return None;
        }
        let bytes = [0, 1, 1000, 100_000][random.below(4) as usize];
        let (status, word) = BAD_DAY[random.below(BAD_DAY.len() as u64) as usize];
        let all = [
            Fault::Delay(Duration::from_millis(random.below(300))),
            Fault::CutRequest(bytes),
            Fault::CutAnswer(Some(bytes)),
            Fault::CutAnswer(None),
            Fault::Say(status, word),
            if self.spoils_puts.load(Ordering::Relaxed) { Fault::SpoilRequest } else { Fault::SpoilAnswer },
            Fault::SpoilAnswer,
            Fault::Stale,
        ];
        Some(all[random.below(all.len() as u64) as usize])
    }

    /// One request of a connection, which ends with it.
    fn serve(&self, mut client: TcpStream) -> Option<()> {
        let (head, mut body) = head(&mut client)?;
        let mut words = head.split(' ');
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        self.asked.lock().unwrap().push(format!("{method} {path}"));
        let fault = self.fault(&method, &path);
        let mut len = header(&head, "content-length").and_then(|len| len.parse().ok()).unwrap_or(0_usize);
        let is_cut = matches!(fault, Some(Fault::CutRequest(bytes)) if bytes < len);
        if let Some(Fault::CutRequest(bytes)) = fault {
            len = len.min(bytes);
        }
        let have = body.len();
        body.resize(len.max(have), 0);
        client.read_exact(body.get_mut(have..)?).ok()?;
        match fault {
            Some(Fault::Say(status, word)) => {
                let said = format!("<?xml version=\"1.0\"?><Error><Code>{word}</Code></Error>");
                let head = format!("HTTP/1.1 {status} {word}");
                return answer(&mut client, &head, said.len(), said.as_bytes(), method == "HEAD");
            }
            Some(Fault::Delay(time)) => std::thread::sleep(time),
            Some(Fault::SpoilRequest) if len > 0 => body[len / 2] ^= 1,
            _ => {}
        }
        let asked = self.ask(&head, &body)?;
        if is_cut {
            // The store may wait for the rest of it for minutes.
            return None;
        }
        let (head, mut body) = asked.answer()?;
        let whole = body.len();
        let is_listing = path.split_once('?').is_some_and(|(_, query)| query.contains(LISTING));
        if is_listing && fault.is_none() {
            self.listings.lock().unwrap().insert(path, body.clone());
        } else if is_listing && matches!(fault, Some(Fault::Stale)) {
            let empty = if path.contains("comp=") { EMPTY_OF_AZURE } else { EMPTY };
            let before = self.listings.lock().unwrap().get(&path).cloned().unwrap_or_else(|| empty.into());
            return answer(&mut client, "HTTP/1.1 200 OK", before.len(), &before, false);
        }
        match fault {
            Some(Fault::CutAnswer(None) | Fault::CutRequest(_)) => return None,
            Some(Fault::CutAnswer(Some(bytes))) => body.truncate(bytes),
            Some(Fault::SpoilAnswer) if method == "GET" && whole > 0 => body[whole / 2] ^= 1,
            _ => {}
        }
        let len = if method == "HEAD" { header(&head, "content-length")?.parse().ok()? } else { whole };
        answer(&mut client, &head, len, &body, method == "HEAD")
    }

    /// Has the store be asked.
    fn ask(&self, request: &str, body: &[u8]) -> Option<Asked> {
        let other = (self.translation)(request, body);
        let (request, body) = other.as_ref().map_or((request, body), |other| (&*other.head, &*other.body));
        let mut store = TcpStream::connect(&self.store).ok()?;
        // Only a store that hangs answers nothing for so long.
        store.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
        let below = format!(" {BELOW}/");
        let prefix = if request.contains(&below) { format!("X-Forwarded-Prefix: {BELOW}\r\n") } else { String::new() };
        let told = without(request, "connection").replacen(&below, " /", 1);
        write!(store, "{told}\r\n{prefix}Connection: close\r\n\r\n").ok()?;
        store.write_all(body).ok()?;
        let (has_body, more) = (!request.starts_with("HEAD"), other.map_or("", |other| other.answered_with));
        Some(Asked { store, has_body, more })
    }
}

/// What a store was asked.
struct Asked {
    store: TcpStream,
    has_body: bool,
    /// Lines that its answer lacks.
    more: &'static str,
}

impl Asked {
    /// What it answers: a head, and the bytes behind it.
    fn answer(mut self) -> Option<(String, Vec<u8>)> {
        let (mut head, mut body) = head(&mut self.store)?;
        head.push_str(self.more);
        if self.has_body {
            self.store.read_to_end(&mut body).ok()?;
        }
        let is_chunked = header(&head, "transfer-encoding").is_some_and(|how| how.contains("chunked"));
        Some((head, if is_chunked { joined(&body)? } else { body }))
    }
}

/// All lines of a head, without the empty one; and what has come behind it.
fn head(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let (mut bytes, mut some) = (Vec::new(), [0; 16 << 10]);
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Some((String::from_utf8(bytes[..end].to_vec()).ok()?, rest));
        }
        let read = stream.read(&mut some).ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&some[..read]);
    }
}

/// A line of a head, without its name.
pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut headers = head.lines().filter_map(|line| line.split_once(':'));
    headers.find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// A head without a line.
pub fn without(head: &str, name: &str) -> String {
    let is_other = |line: &&str| !line.split_once(':').is_some_and(|(own, _)| own.eq_ignore_ascii_case(name));
    head.lines().filter(is_other).collect::<Vec<_>>().join("\r\n")
}

/// What comes in chunks, each with its length before it.
fn joined(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n")?;
        let len = usize::from_str_radix(std::str::from_utf8(&body[..end]).ok()?.trim(), 16).ok()?;
        if len == 0 {
            return Some(all);
        }
        all.extend_from_slice(body.get(end + 2..end + 2 + len)?);
        body = body.get(end + 4 + len..)?;
    }
}

/// Answers with a head of the store's, the length that it told of, and the bytes that there are.
fn answer(client: &mut TcpStream, head: &str, len: usize, body: &[u8], is_head: bool) -> Option<()> {
    let head = ["content-length", "transfer-encoding", "connection"]
        .iter()
        .fold(head.to_owned(), |head, name| without(&head, name));
    write!(client, "{head}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n").ok()?;
    if is_head { Some(()) } else { client.write_all(body).ok() }
}
