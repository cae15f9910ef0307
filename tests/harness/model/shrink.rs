//! Makes a failing list smaller, by leaving out what it does not take (delta debugging).

/// The smallest list that was found to fail still. `fails` is asked at most `budget` times.
pub fn shrink<T: Clone>(list: Vec<T>, budget: usize, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut list = list;
    let mut asked = 0;
    let mut part = list.len().div_ceil(2);
    while part > 0 {
        let mut smaller = false;
        let mut start = 0;
        while start < list.len() {
            if asked == budget {
                return list;
            }
            let end = (start + part).min(list.len());
            let without = [&list[..start], &list[end..]].concat();
            asked += 1;
            if fails(&without) {
                list = without;
                smaller = true;
            } else {
                start = end;
            }
        }
        // Single ones again, as long as that helps.
        if part > 1 || !smaller {
            part /= 2;
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_two_that_it_takes() {
        let list: Vec<u32> = (0..1000).collect();
        let smallest = shrink(list, 1000, |list| list.contains(&77) && list.contains(&901));
        assert_eq!(smallest, [77, 901]);
    }

    #[test]
    fn stops_when_the_budget_is_spent() {
        let mut asked = 0;
        let smallest = shrink((0..1000).collect(), 5, |list| {
            asked += 1;
            list.contains(&999)
        });
        assert_eq!(asked, 5);
        assert!(smallest.contains(&999));
    }
}
