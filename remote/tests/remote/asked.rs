//! The half of a store's server that is no store: it listens, and hears what it is asked by HTTP.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// What it is asked.
pub struct Request {
    pub method: String,
    /// The path and the query.
    pub target: String,
    /// In small letters.
    pub headers: Vec<String>,
    pub body: Vec<u8>,
}

impl Request {
    /// The next one of a connection; none if that has ended.
    fn next(from: &mut impl BufRead) -> Option<Self> {
        let mut line = || {
            let mut line = String::new();
            from.read_line(&mut line).ok().filter(|read| *read > 0)?;
            Some(line.trim().to_owned())
        };
        let first = line()?;
        let mut words = first.split(' ').map(str::to_owned);
        let (method, target) = (words.next()?, words.next()?);
        let mut headers = Vec::new();
        loop {
            match line()?.to_ascii_lowercase() {
                header if header.is_empty() => break,
                header => headers.push(header),
            }
        }
        let len = headers.iter().find_map(|header| header.strip_prefix("content-length: "));
        let mut body = vec![0; len.map_or(0, |len| len.parse().unwrap())];
        from.read_exact(&mut body).ok()?;
        Some(Self { method, target, headers, body })
    }

    /// What is put is not to take the place of anything.
    pub fn is_new(&self) -> bool {
        self.headers.iter().any(|header| header == "if-none-match: *")
    }
}

/// Listens for as long as the tests go on, and has each request answered on a thread of its connection, which ends
/// where there is no answer. Gives the address.
pub fn listen(answer: impl Fn(Request, &TcpStream) -> Option<()> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            thread::spawn(move || {
                let mut requests = BufReader::new(&stream);
                while Request::next(&mut requests).and_then(|request| answer(request, &stream)).is_some() {}
            });
        }
    });
    address
}
