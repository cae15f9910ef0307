//! Which images of a disk are tried: all there are if they are few, else the likely ones and a seeded sample.

use crate::blob::Choice;
use crate::disk::{Disk, Kind};
use crate::random::Random;

/// How many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Up to so many combinations all are tried.
    pub exhaustive: usize,
    /// Else so many single omissions and single arrivals of each kind.
    pub single: usize,
    /// And so many others.
    pub sampled: usize,
}

impl Budget {
    /// No images at all.
    pub const NONE: Self = Self { exhaustive: 0, single: 0, sampled: 0 };
}

/// The combinations to try of what a power loss may leave.
pub fn choose(disk: &Disk, budget: Budget, random: &mut Random) -> Vec<Vec<Choice>> {
    let axes = disk.axes();
    let mut combinations = 1usize;
    for versions in &axes {
        combinations = combinations.saturating_mul(*versions);
    }
    if combinations <= budget.exhaustive {
        return all(&axes);
    }
    let open: Vec<usize> = (0..axes.len()).filter(|axis| axes[*axis] > 1).collect();
    let oldest: Vec<Choice> = axes.iter().map(|_| Choice::Whole(0)).collect();
    let newest = disk.newest();
    let mut images = vec![oldest.clone(), newest.clone()];
    let some = |random: &mut Random| -> Vec<usize> {
        if open.len() <= budget.single {
            return open.clone();
        }
        (0..budget.single).map(|_| open[random.below(open.len())]).collect()
    };
    for axis in some(random) {
        let mut image = newest.clone();
        image[axis] = Choice::Whole(random.below(axes[axis] - 1));
        images.push(image);
    }
    for axis in some(random) {
        let mut image = oldest.clone();
        image[axis] = Choice::Whole(1 + random.below(axes[axis] - 1));
        images.push(image);
    }
    let lines = if disk.kind == Kind::Dax { disk.log_axes() } else { 0 };
    for _ in 0..budget.sampled {
        // Few, half, or most of it reached the medium.
        let likely = [1, 4, 7][random.below(3)];
        let mut image = oldest.clone();
        for axis in &open {
            let versions = axes[*axis];
            let newest = random.below(8) < likely;
            image[*axis] = if *axis < lines && random.one_in(6) {
                Choice::Torn(random.below(versions - 1), random.number())
            } else if versions > 2 && random.one_in(3) {
                Choice::Whole(random.below(versions))
            } else {
                Choice::Whole(if newest { versions - 1 } else { 0 })
            };
        }
        images.push(image);
    }
    images
}

fn all(axes: &[usize]) -> Vec<Vec<Choice>> {
    let mut images = vec![Vec::new()];
    for versions in axes {
        let mut more = Vec::with_capacity(images.len() * versions);
        for image in &images {
            for version in 0..*versions {
                let mut image: Vec<Choice> = image.clone();
                image.push(Choice::Whole(version));
                more.push(image);
            }
        }
        images = more;
    }
    images
}
