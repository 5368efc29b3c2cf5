//! What stands in the parentheses of `#[hg::rpc(...)]`.

use syn::{
    Error, LitStr, Path, Result, Token,
    ext::IdentExt,
    parse::{Parse, ParseStream},
};

/// The options, each at most once.
#[derive(Default)]
pub(crate) struct Options {
    /// `name = "..."`: the full name on the wire.
    pub(crate) name: Option<LitStr>,
    /// `crate = path`: where Hydrargyrum is, `::hg` unless given.
    pub(crate) hg: Option<Path>,
    /// `implements = path`: the declaration that this is the handler of.
    pub(crate) implements: Option<Path>,
    /// `blocking`: the word, for its span.
    pub(crate) blocking: Option<syn::Ident>,
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            options.parse_one(input)?;
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        if let (Some(name), Some(_)) = (&options.name, &options.implements) {
            return Err(Error::new_spanned(
                name,
                "`implements` takes the declaration's name: leave out `name`",
            ));
        }
        Ok(options)
    }
}

impl Options {
    fn parse_one(&mut self, input: ParseStream<'_>) -> Result<()> {
        let word = syn::Ident::parse_any(input)?;
        match word.to_string().as_str() {
            "name" => {
                input.parse::<Token![=]>()?;
                once(&mut self.name, named(input)?, &word)
            }
            "crate" => {
                input.parse::<Token![=]>()?;
                once(&mut self.hg, Path::parse_mod_style(input)?, &word)
            }
            "implements" => {
                input.parse::<Token![=]>()?;
                once(&mut self.implements, Path::parse_mod_style(input)?, &word)
            }
            "blocking" => once(&mut self.blocking, word.clone(), &word),
            other => Err(Error::new_spanned(
                &word,
                format!(
                    "no such option: `{other}`; there are `name = \"...\"`, `blocking`, \
                     `implements = path` and `crate = path`"
                ),
            )),
        }
    }
}

fn named(input: ParseStream<'_>) -> Result<LitStr> {
    let name: LitStr = input.parse()?;
    if name.value().is_empty() {
        return Err(Error::new_spanned(name, "an RPC's name cannot be empty"));
    }
    Ok(name)
}

fn once<T>(slot: &mut Option<T>, value: T, word: &syn::Ident) -> Result<()> {
    if slot.replace(value).is_some() {
        return Err(Error::new_spanned(word, format!("`{word}` is given twice")));
    }
    Ok(())
}
