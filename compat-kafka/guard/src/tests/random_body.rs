//! Bodies filled at random along a schema. The decoder checks that clients could send them: it must
//! read each to its last byte.

use testkit::rng::SeededRng;

use crate::schema::{ElementType, FieldSchema, FieldType, RequestSchema, SchemaFields};

/// Beyond this, arrays stay small.
const FULL_BYTES: usize = 4 << 10;

pub(super) struct RandomBody {
    pub(super) body: Vec<u8>,
    /// The place of a length or a count.
    pub(super) length_fields: Vec<LengthField>,
}

pub(super) struct LengthField {
    pub(super) at: usize,
    pub(super) width: LengthWidth,
}

#[derive(Clone, Copy)]
pub(super) enum LengthWidth {
    Varint,
    Two,
    Four,
}

pub(super) fn random_body(request: &RequestSchema, version: i16, seed: u64) -> RandomBody {
    let is_flexible = version >= request.flexible_since;
    let out = RandomBody { body: Vec::new(), length_fields: Vec::new() };
    let mut filler = RandomBodyBuilder { out, random: SeededRng::new(seed), version, is_flexible };
    filler.fields(request.fields);
    filler.out
}

struct RandomBodyBuilder {
    out: RandomBody,
    random: SeededRng,
    version: i16,
    is_flexible: bool,
}

impl RandomBodyBuilder {
    fn below(&mut self, end: usize) -> usize {
        self.random.below(end as u64) as usize
    }

    fn fields(&mut self, fields: SchemaFields) {
        let version = self.version;
        for field in fields.iter().filter(|field| field.is_plain_in(version)) {
            self.value(&field.kind);
        }
        if self.is_flexible {
            self.tags(fields);
        }
    }

    fn value(&mut self, kind: &FieldType) {
        match *kind {
            FieldType::Fixed(bytes) => self.noise(bytes),
            FieldType::String => self.text(self.width(LengthWidth::Two)),
            FieldType::ShortString => self.text(LengthWidth::Two),
            FieldType::Bytes => self.text(self.width(LengthWidth::Four)),
            FieldType::Array { ref of, .. } => {
                let count = self.count();
                self.announce(self.width(LengthWidth::Four), count);
                (0..count).for_each(|_| self.element(of));
            }
            FieldType::Inline(fields) => self.fields(fields),
            FieldType::Nullable(fields) => match self.below(2) {
                0 => self.out.body.push(0xff),
                _ => {
                    self.out.body.push(1);
                    self.fields(fields);
                }
            },
        }
    }

    fn element(&mut self, of: &ElementType) {
        match *of {
            ElementType::Fixed(bytes) => self.noise(bytes),
            ElementType::String => self.text(self.width(LengthWidth::Two)),
            ElementType::Struct(fields) => self.fields(fields),
        }
    }

    fn tags(&mut self, fields: SchemaFields) {
        let known = (0..8).filter_map(|tag| {
            fields.iter().find(|field| field.has_tag(tag, self.version)).map(|field| (tag, field))
        });
        let known: Vec<(u32, &FieldSchema)> = known.filter(|_| self.random.below(2) == 0).collect();
        let unknown = match self.below(64) {
            0 => self.below(60),
            few => few.saturating_sub(61),
        };
        self.varint((known.len() + unknown) as u32);
        for (tag, field) in known {
            self.varint(tag);
            self.sized(|filler| filler.value(&field.kind));
        }
        for _ in 0..unknown {
            let tag = 8 + self.random.next_u64() as u32 % 1_000_000;
            self.varint(tag);
            self.text_of_tag();
        }
    }

    /// The value of a known tag, after its size.
    fn sized(&mut self, fill: impl FnOnce(&mut RandomBodyBuilder)) {
        let outer = std::mem::replace(
            &mut self.out,
            RandomBody { body: Vec::new(), length_fields: Vec::new() },
        );
        fill(self);
        let inner = std::mem::replace(&mut self.out, outer);
        self.announce_as_is(inner.body.len() as u32);
        let base = self.out.body.len();
        self.out.body.extend(inner.body);
        let moved = inner.length_fields.into_iter();
        self.out
            .length_fields
            .extend(moved.map(|LengthField { at, width }| LengthField { at: base + at, width }));
    }

    fn text_of_tag(&mut self) {
        let length = self.below(5);
        self.announce_as_is(length as u32);
        self.noise(length);
    }

    fn text(&mut self, width: LengthWidth) {
        let length = self.below(12);
        self.announce(width, length);
        (0..length).for_each(|at| self.out.body.push(b'a' + at as u8));
    }

    fn noise(&mut self, bytes: usize) {
        (0..bytes).for_each(|_| self.out.body.push(self.random.next_u64() as u8));
    }

    fn count(&mut self) -> usize {
        let few = self.below(4);
        match self.below(16) {
            0 if self.out.body.len() < FULL_BYTES => 100 + few,
            _ if self.out.body.len() < 2 * FULL_BYTES => few,
            _ => few / 2,
        }
    }

    fn width(&self, inflexible: LengthWidth) -> LengthWidth {
        if self.is_flexible { LengthWidth::Varint } else { inflexible }
    }

    fn announce(&mut self, width: LengthWidth, length: usize) {
        let at = self.out.body.len();
        match width {
            LengthWidth::Varint => self.varint(length as u32 + 1),
            LengthWidth::Two => self.out.body.extend((length as i16).to_be_bytes()),
            LengthWidth::Four => self.out.body.extend((length as i32).to_be_bytes()),
        }
        self.out.length_fields.push(LengthField { at, width });
    }

    fn announce_as_is(&mut self, size: u32) {
        self.out
            .length_fields
            .push(LengthField { at: self.out.body.len(), width: LengthWidth::Varint });
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
