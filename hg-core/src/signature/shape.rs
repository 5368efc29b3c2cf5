//! The shape of a type, as it was found out so far, and how it is written.

use std::fmt;

/// What a type asks of a deserializer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Shape {
    /// Nothing, or it was not found out.
    #[default]
    Unknown,
    Leaf(&'static str),
    Option(Box<Shape>),
    Seq(Box<Shape>),
    Map(Box<(Shape, Shape)>),
    Fields {
        /// Those of a struct.
        names: &'static [&'static str],
        fields: Vec<Shape>,
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
            Self::Option(inner) | Self::Seq(inner) => inner.is_complete(),
            Self::Map(entry) => entry.0.is_complete() && entry.1.is_complete(),
            Self::Fields { fields, .. } => fields.iter().all(Self::is_complete),
            Self::Enum { variants, count, .. } => {
                variants.len() >= *count && variants.iter().all(Self::is_met)
            }
        }
    }

    /// The same for a variant.
    fn is_met(&self) -> bool {
        *self != Self::Unknown && self.is_complete()
    }

    /// It is an option: of what.
    pub(super) fn option(&mut self) -> &mut Shape {
        if !matches!(self, Self::Option(_)) {
            *self = Self::Option(Box::default());
        }
        let Self::Option(inner) = self else { unreachable!("it was made one") };
        inner
    }

    /// It is a sequence: of what.
    pub(super) fn seq(&mut self) -> &mut Shape {
        if !matches!(self, Self::Seq(_)) {
            *self = Self::Seq(Box::default());
        }
        let Self::Seq(element) = self else { unreachable!("it was made one") };
        element
    }

    /// It is a map: of what.
    pub(super) fn map(&mut self) -> (&mut Shape, &mut Shape) {
        if !matches!(self, Self::Map(_)) {
            *self = Self::Map(Box::default());
        }
        let Self::Map(entry) = self else { unreachable!("it was made one") };
        (&mut entry.0, &mut entry.1)
    }

    /// It is a tuple, or a struct with such names: of what.
    pub(super) fn fields(&mut self, names: &'static [&'static str]) -> &mut Vec<Shape> {
        if !matches!(self, Self::Fields { .. }) {
            *self = Self::Fields { names, fields: Vec::new() };
        }
        let Self::Fields { fields, .. } = self else { unreachable!("it was made one") };
        fields
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
            Self::Option(inner) => write!(out, "option<{inner}>"),
            // They are the same bytes.
            Self::Seq(element) if **element == Self::Leaf("u8") => out.write_str("bytes"),
            Self::Seq(element) => write!(out, "[{element}]"),
            Self::Map(entry) => write!(out, "map<{}, {}>", entry.0, entry.1),
            Self::Fields { names, fields } => write_fields(out, names, fields),
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
