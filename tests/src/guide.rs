//! The guide as a site: what becomes of the links in its pages, which rustdoc reads as they are.

/// Where the items of the runtime are documented: a search that goes to its first result, since a link doesn't say whether it
/// is to a type, a function or a method.
pub const ITEMS: &str = "https://docs.rs/inbox-runtime/latest/inbox_runtime/?go_to_first=true&search=";

/// A page as the site has it: a link to another page leads there, one to an item to its documentation.
#[must_use]
pub fn site_text(page: &str) -> String {
    let mut parts = page.split("](crate::");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (path, rest) = part.split_once(')').unwrap_or((part, ""));
        let target = match path.strip_prefix("guide::") {
            Some(page) => match page.split_once('#') {
                Some((page, section)) => format!("{page}.md#{section}"),
                None => format!("{page}.md"),
            },
            None => format!("{ITEMS}{path}"),
        };
        text.push_str(&format!("]({target}){rest}"));
    }
    text
}

/// The targets of the links in a text.
#[must_use]
pub fn links(text: &str) -> Vec<&str> {
    let behind = text.split("](").skip(1);
    behind.filter_map(|link| Some(link.split_once(')')?.0)).collect()
}
