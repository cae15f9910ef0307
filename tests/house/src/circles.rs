//! Circles of arrows between files.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::path::PathBuf;

use crate::arrows::Arrow;

/// Files that all lead to each other.
#[derive(Debug)]
pub struct Knot {
    /// The files, sorted.
    pub files: Vec<PathBuf>,
    /// Circles among them, short ones first, no two of which share an arrow. Where one arrow of each is cut, a smaller
    /// knot is left, or none.
    pub circles: Vec<Vec<Arrow>>,
    /// How many pairs of files have an arrow from the first to the second.
    pub arrows: usize,
}

impl fmt::Display for Knot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} files in circles, {} arrows among them:", self.files.len(), self.arrows)?;
        for file in &self.files {
            write!(f, " {}", file.display())?;
        }
        for circle in &self.circles {
            f.write_str("\n  circle:")?;
            for arrow in circle {
                write!(f, "\n    {arrow}")?;
            }
        }
        Ok(())
    }
}

type Graph<'a> = BTreeMap<usize, BTreeMap<usize, &'a Arrow>>;

/// Finds all circles. `file` gives the file of a module, by its number.
pub fn knots<'a>(arrows: &[Arrow], file: impl Fn(usize) -> &'a PathBuf) -> Vec<Knot> {
    let mut numbers: BTreeMap<&PathBuf, usize> = BTreeMap::new();
    let mut files: Vec<&PathBuf> = Vec::new();
    let mut number = |module| {
        let file = file(module);
        *numbers.entry(file).or_insert_with(|| {
            files.push(file);
            files.len() - 1
        })
    };
    let mut graph = Graph::new();
    for arrow in arrows.iter().filter(|arrow| !arrow.signpost) {
        let (from, to) = (number(arrow.from), number(arrow.to));
        if from != to {
            graph.entry(from).or_default().entry(to).or_insert(arrow);
            graph.entry(to).or_default();
        }
    }
    let reach: BTreeMap<usize, BTreeSet<usize>> = graph.keys().map(|&start| (start, reached(&graph, start))).collect();
    let mut done = BTreeSet::new();
    let mut found = Vec::new();
    for (&start, forward) in &reach {
        if !forward.contains(&start) || done.contains(&start) {
            continue;
        }
        let members: BTreeSet<usize> = forward.iter().copied().filter(|other| reach[other].contains(&start)).collect();
        done.extend(members.iter().copied());
        let within: Graph<'_> = members
            .iter()
            .map(|from| {
                (*from, graph[from].iter().filter(|(to, _)| members.contains(to)).map(|(k, v)| (*k, *v)).collect())
            })
            .collect();
        let mut files: Vec<PathBuf> = members.iter().map(|&member| files[member].clone()).collect();
        files.sort();
        let arrows = within.values().map(BTreeMap::len).sum();
        found.push(Knot { files, arrows, circles: circles(within) });
    }
    found
}

/// All that can be reached from a place, the place itself only if a circle leads back to it.
fn reached(graph: &Graph<'_>, start: usize) -> BTreeSet<usize> {
    let mut seen = BTreeSet::new();
    let mut next = vec![start];
    while let Some(at) = next.pop() {
        next.extend(graph[&at].keys().filter(|to| seen.insert(**to)));
    }
    seen
}

/// Takes the shortest circle out of the graph until there is none.
fn circles(mut graph: Graph<'_>) -> Vec<Vec<Arrow>> {
    let mut found = Vec::new();
    while let Some(shortest) = graph.keys().filter_map(|&start| circle(&graph, start)).min_by_key(|circle| circle.len())
    {
        let mut arrows = Vec::new();
        for (from, to) in shortest {
            arrows.extend(graph.get_mut(&from).and_then(|arrows| arrows.remove(&to)).cloned());
        }
        found.push(arrows);
    }
    found
}

/// The shortest way from a place back to it.
fn circle(graph: &Graph<'_>, start: usize) -> Option<Vec<(usize, usize)>> {
    let mut from = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(at) = next.pop_front() {
        for &to in graph[&at].keys() {
            if to == start {
                let mut steps = vec![(at, to)];
                let mut at = at;
                while at != start {
                    let before = from[&at];
                    steps.push((before, at));
                    at = before;
                }
                steps.reverse();
                return Some(steps);
            }
            from.entry(to).or_insert_with(|| {
                next.push_back(to);
                at
            });
        }
    }
    None
}
