//! The shape of a type, as it was found out so far, and how it is written.

use std::fmt;

/// What a type asks of a deserializer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Shape {
    /// Nothing, or it was not found out.
    #[default]
    Unknown,
    Leaf(&'static str),
    /// Something that is made of others: one of an option or a sequence, two of a map.
    Made {
        of: Made,
        /// Those of a struct.
        names: &'static [&'static str],
        /// Those that were met.
        parts: Vec<Shape>,
    },
    Enum {
        names: &'static [&'static str],
        /// Those that were met, each as its fields.
        variants: Vec<Shape>,
        count: usize,
    },
    /// A type that is met inside of itself.
    Recursive,
}

/// How a type is made of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Made {
    Option,
    Seq,
    Map,
    Fields,
}

/// The variant of an enum that is met next.
pub(super) struct Variant<'t> {
    variants: &'t mut Vec<Shape>,
    count: &'t mut usize,
    at: usize,
}

impl Shape {
    /// Whether every variant of every enum was met.
    pub(super) fn is_complete(&self) -> bool {
        match self {
            Self::Unknown | Self::Leaf(_) | Self::Recursive => true,
            Self::Made { parts, .. } => parts.iter().all(Self::is_complete),
            Self::Enum { variants, count, .. } => {
                variants.len() >= *count && variants.iter().all(Self::is_met)
            }
        }
    }

    /// The same for a variant.
    fn is_met(&self) -> bool {
        *self != Self::Unknown && self.is_complete()
    }

    /// It is made so, of parts with such names: of which.
    pub(super) fn parts(&mut self, made: Made, names: &'static [&'static str]) -> &mut Vec<Shape> {
        if !matches!(self, Self::Made { of, .. } if *of == made) {
            *self = Self::Made { of: made, names, parts: Vec::new() };
        }
        let Self::Made { parts, .. } = self else { unreachable!("it was made one") };
        parts
    }

    /// It is an enum: which variant is to be met next.
    pub(super) fn next_variant(&mut self, names: &'static [&'static str]) -> (u32, Variant<'_>) {
        if !matches!(self, Self::Enum { .. }) {
            *self = Self::Enum { names, variants: Vec::new(), count: names.len() };
        }
        let Self::Enum { variants, count, .. } = self else { unreachable!("it was made one") };
        let at = match variants.iter().position(|variant| !variant.is_met()) {
            Some(at) => at,
            None if variants.len() < *count => {
                variants.push(Self::Unknown);
                variants.len() - 1
            }
            None => 0,
        };
        // An enum without variants has no value: any number is refused.
        if variants.is_empty() {
            variants.push(Self::Unknown);
        }
        (u32::try_from(at).unwrap_or(u32::MAX), Variant { variants, count, at })
    }
}

impl<'t> Variant<'t> {
    pub(super) fn into_shape(self) -> &'t mut Shape {
        &mut self.variants[self.at]
    }

    /// There is no such variant, says its type: whether there are others, before it.
    pub(super) fn end_before(self) -> bool {
        self.variants.truncate(self.at);
        *self.count = self.at;
        self.at > 0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => out.write_str("?"),
            Self::Recursive => out.write_str("..."),
            Self::Leaf(word) => out.write_str(word),
            Self::Made { of, names, parts } => {
                let part = |at| parts.get(at).unwrap_or(&Self::Unknown);
                match of {
                    Made::Option => write!(out, "option<{}>", part(0)),
                    // They are the same bytes.
                    Made::Seq if *part(0) == Self::Leaf("u8") => out.write_str("bytes"),
                    Made::Seq => write!(out, "[{}]", part(0)),
                    Made::Map => write!(out, "map<{}, {}>", part(0), part(1)),
                    Made::Fields => write_fields(out, names, parts),
                }
            }
            Self::Enum { names, variants, count } => write_enum(out, &names[..*count], variants),
        }
    }
}

/// More fields than these, all alike, are written as an array.
const ALIKE: usize = 4;

fn write_fields(
    out: &mut fmt::Formatter<'_>,
    names: &[&'static str],
    fields: &[Shape],
) -> fmt::Result {
    if names.is_empty() && fields.len() > ALIKE && fields.windows(2).all(|pair| pair[0] == pair[1])
    {
        return write!(out, "[{}; {}]", fields[0], fields.len());
    }
    let (open, close) = if names.is_empty() { ("(", ")") } else { ("{", "}") };
    out.write_str(open)?;
    for (at, field) in fields.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        match names.get(at) {
            Some(name) => write!(out, "{comma}{name}: {field}")?,
            None => write!(out, "{comma}{field}")?,
        }
    }
    out.write_str(close)
}

fn write_enum(
    out: &mut fmt::Formatter<'_>,
    names: &[&'static str],
    variants: &[Shape],
) -> fmt::Result {
    out.write_str("enum{")?;
    for (at, name) in names.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        match variants.get(at) {
            Some(fields) => write!(out, "{comma}{name}{fields}")?,
            None => write!(out, "{comma}{name}?")?,
        }
    }
    out.write_str("}")
}
