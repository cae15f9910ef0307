//! What Orbax says in JSON of what else there is of a checkpoint: in `_CHECKPOINT_METADATA` which items it has, and in
//! the `_METADATA` of an item whether its arrays are in a database.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::names::is_below;

/// The most items that are told of.
const ITEMS_MAX: usize = 4096;
/// How the names of handlers end that write `_METADATA`.
const OF_TREES: [&str; 2] = ["StandardCheckpointHandler", "PyTreeCheckpointHandler"];

/// What there has to be beside such a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Need {
    /// A directory of this name, with something in it.
    Item(String),
    /// A directory of this name with `_METADATA` in it; without a name, the directory itself.
    Tree(String),
    /// A database.
    Database,
}

/// What a key has that matters: other values are passed over.
pub(crate) struct Said(Vec<Need>);

impl Said {
    /// What a key of the outermost dictionary says is needed: of which kind, and its name.
    pub fn needs(self, key: &str) -> impl Iterator<Item = (String, String)> {
        let is_of_database = key == "use_ocdbt";
        let needs = self.0.into_iter().filter(move |need| is_of_database == (*need == Need::Database));
        needs.map(|need| match need {
            Need::Item(name) => ("item".to_owned(), name),
            Need::Tree(name) => ("tree".to_owned(), name),
            Need::Database => ("database".to_owned(), String::new()),
        })
    }

    /// Whether a key may say something.
    pub fn is_in(key: &str) -> bool {
        ["item_handlers", "use_ocdbt"].contains(&key)
    }
}

impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Said;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_bool<E>(self, is_so: bool) -> Result<Said, E> {
        Ok(Said(if is_so { vec![Need::Database] } else { Vec::new() }))
    }

    /// One handler: the directory itself is the item.
    fn visit_str<E>(self, handler: &str) -> Result<Said, E> {
        Ok(Said(if is_of_trees(handler) { vec![Need::Tree(String::new())] } else { Vec::new() }))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Said, A::Error> {
        let mut needs = Vec::new();
        while let Some((name, Handler(is_of_tree))) = map.next_entry::<String, Handler>()? {
            // What is no name of a directory is none of Orbax's.
            if !is_below(&name) || name.contains('/') || needs.len() > ITEMS_MAX {
                continue;
            }
            needs.push(match needs.len() {
                // Nothing is called so: of more items than are looked for it is not said that they are there.
                ITEMS_MAX => Need::Item(String::new()),
                _ if is_of_tree => Need::Tree(name),
                _ => Need::Item(name),
            });
        }
        Ok(Said(needs))
    }

    fn visit_unit<E>(self) -> Result<Said, E> {
        Ok(Said(Vec::new()))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Said, E> {
        Ok(Said(Vec::new()))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Said, E> {
        Ok(Said(Vec::new()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Said, E> {
        Ok(Said(Vec::new()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Said, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Said(Vec::new()))
    }
}

/// Whether what is said of an item is the name of a handler that writes `_METADATA`.
struct Handler(bool);

impl<'de> Deserialize<'de> for Handler {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Said(needs) = Said::deserialize(deserializer)?;
        Ok(Self(matches!(&needs[..], [Need::Tree(name)] if name.is_empty())))
    }
}

fn is_of_trees(handler: &str) -> bool {
    OF_TREES.iter().any(|end| handler.ends_with(end))
}

#[cfg(test)]
mod tests {
    use crate::recognise::shards;

    fn needs(json: &str) -> String {
        let found = shards(&json.as_bytes());
        assert_eq!(found.reason, None, "{json}");
        let all: Vec<_> = found.metadata.into_iter().map(|(kind, name)| format!("{kind}:{name}")).collect();
        all.join(" ")
    }

    #[test]
    fn what_orbax_says_of_items_and_databases_is_known() {
        let items = r#"{"metrics":{}, "item_handlers": {"a": "x.StandardCheckpointHandler", "b": "JsonHandler",
            "c": null, "d": {"item_handlers": true}, "e": ["PyTreeCheckpointHandler"]}, "custom_metadata": {}}"#;
        assert_eq!(needs(items), "tree:a item:b item:c item:d item:e");
        assert_eq!(needs(r#"{"item_handlers": "x.PyTreeCheckpointHandler"}"#), "tree:");
        assert_eq!(needs(r#"{"tree_metadata": {"x": {"use_ocdbt": false}}, "use_ocdbt": true}"#), "database:");
        assert_eq!(needs(r#"{"item_handlers": {"..": "", "": "", "a/b": ""}}"#), "");
        for nothing in ["true", "{}", "null", "1", "-1", "1.5", "[{}]", "\"x\""] {
            assert_eq!(needs(&format!("{{\"item_handlers\": {nothing}}}")), "", "{nothing}");
        }
        for nothing in ["false", "{\"a\": 1}", "null", "\"StandardCheckpointHandler\""] {
            assert_eq!(needs(&format!("{{\"use_ocdbt\": {nothing}}}")), "", "{nothing}");
        }
    }
}
