//! Where something is at its end: the pool's limit, the host's space, names, links, descriptors, and very many files.
//! Apart from the other tests, because these take space, memory and descriptors that others would miss.

mod bounds;
mod descriptors;
mod full;
mod many;
mod memory;
