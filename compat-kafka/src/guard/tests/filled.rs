//! Bodies filled at random along a schema. That they are what clients send is for the decoder to
//! say: it must read each to its last byte.

use super::super::schema::{Element, Field, Fields, Kind, Request};

/// Beyond this, arrays stay small.
const FULL_BYTES: usize = 4 << 10;

pub(super) struct Filled {
    pub(super) body: Vec<u8>,
    /// Where a length or a count stands.
    pub(super) announced: Vec<Announced>,
}

pub(super) struct Announced {
    pub(super) at: usize,
    pub(super) width: Width,
}

#[derive(Clone, Copy)]
pub(super) enum Width {
    Varint,
    Two,
    Four,
}

/// Splitmix64: a whole body replays from one seed.
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

pub(super) fn filled(request: &Request, version: i16, seed: u64) -> Filled {
    let is_flexible = version >= request.flexible_since;
    let out = Filled { body: Vec::new(), announced: Vec::new() };
    let mut filler = Filler { out, random: Random(seed), version, is_flexible };
    filler.fields(request.fields);
    filler.out
}

struct Filler {
    out: Filled,
    random: Random,
    version: i16,
    is_flexible: bool,
}

impl Filler {
    fn fields(&mut self, fields: Fields) {
        let version = self.version;
        for field in fields.iter().filter(|field| field.is_plain_in(version)) {
            self.value(&field.kind);
        }
        if self.is_flexible {
            self.tags(fields);
        }
    }

    fn value(&mut self, kind: &Kind) {
        match *kind {
            Kind::Fixed(bytes) => self.noise(bytes),
            Kind::String => self.text(self.width(Width::Two)),
            Kind::ShortString => self.text(Width::Two),
            Kind::Bytes => self.text(self.width(Width::Four)),
            Kind::Array { ref of, .. } => {
                let count = self.count();
                self.announce(self.width(Width::Four), count);
                (0..count).for_each(|_| self.element(of));
            }
            Kind::Inline(fields) => self.fields(fields),
            Kind::Nullable(fields) => match self.random.below(2) {
                0 => self.out.body.push(0xff),
                _ => {
                    self.out.body.push(1);
                    self.fields(fields);
                }
            },
        }
    }

    fn element(&mut self, of: &Element) {
        match *of {
            Element::Fixed(bytes) => self.noise(bytes),
            Element::String => self.text(self.width(Width::Two)),
            Element::Struct(fields) => self.fields(fields),
        }
    }

    fn tags(&mut self, fields: Fields) {
        let known = (0..8).filter_map(|tag| {
            fields.iter().find(|field| field.has_tag(tag, self.version)).map(|field| (tag, field))
        });
        let known: Vec<(u32, &Field)> = known.filter(|_| self.random.below(2) == 0).collect();
        let unknown = match self.random.below(64) {
            0 => self.random.below(60),
            few => few.saturating_sub(61),
        };
        self.varint((known.len() + unknown) as u32);
        for (tag, field) in known {
            self.varint(tag);
            self.sized(|filler| filler.value(&field.kind));
        }
        for _ in 0..unknown {
            let tag = 8 + self.random.next() as u32 % 1_000_000;
            self.varint(tag);
            self.text_of_tag();
        }
    }

    /// A known tag's value, behind its size.
    fn sized(&mut self, fill: impl FnOnce(&mut Filler)) {
        let outer =
            std::mem::replace(&mut self.out, Filled { body: Vec::new(), announced: Vec::new() });
        fill(self);
        let inner = std::mem::replace(&mut self.out, outer);
        self.announce_as_is(inner.body.len() as u32);
        let base = self.out.body.len();
        self.out.body.extend(inner.body);
        let moved = inner.announced.into_iter();
        self.out
            .announced
            .extend(moved.map(|Announced { at, width }| Announced { at: base + at, width }));
    }

    fn text_of_tag(&mut self) {
        let length = self.random.below(5);
        self.announce_as_is(length as u32);
        self.noise(length);
    }

    fn text(&mut self, width: Width) {
        let length = self.random.below(12);
        self.announce(width, length);
        (0..length).for_each(|at| self.out.body.push(b'a' + at as u8));
    }

    fn noise(&mut self, bytes: usize) {
        (0..bytes).for_each(|_| self.out.body.push(self.random.next() as u8));
    }

    fn count(&mut self) -> usize {
        let few = self.random.below(4);
        match self.random.below(16) {
            0 if self.out.body.len() < FULL_BYTES => 100 + few,
            _ if self.out.body.len() < 2 * FULL_BYTES => few,
            _ => few / 2,
        }
    }

    fn width(&self, inflexible: Width) -> Width {
        if self.is_flexible { Width::Varint } else { inflexible }
    }

    fn announce(&mut self, width: Width, length: usize) {
        let at = self.out.body.len();
        match width {
            Width::Varint => self.varint(length as u32 + 1),
            Width::Two => self.out.body.extend((length as i16).to_be_bytes()),
            Width::Four => self.out.body.extend((length as i32).to_be_bytes()),
        }
        self.out.announced.push(Announced { at, width });
    }

    fn announce_as_is(&mut self, size: u32) {
        self.out.announced.push(Announced { at: self.out.body.len(), width: Width::Varint });
        self.varint(size);
    }

    fn varint(&mut self, value: u32) {
        self.out.body.extend(varint(value));
    }
}

pub(super) fn varint(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
