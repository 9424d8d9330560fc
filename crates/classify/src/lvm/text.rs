//! Parser of LVM2's text format: sections in braces, and values that are numbers, strings or lists
//! of these.

/// Greatest depth of nested sections.
const DEPTH_MAX: u32 = 8;
/// The most nodes in a text: a group of 256 volumes has some thousands.
const NODES_MAX: u32 = 100_000;

/// A value, or a section of named values.
#[derive(Debug, PartialEq, Eq)]
pub enum Node<'text> {
    Number(u64),
    Text(&'text str),
    List(Vec<Node<'text>>),
    Section(Vec<(&'text str, Node<'text>)>),
}

impl<'text> Node<'text> {
    /// Returns the entry of this name in a section.
    pub fn get(&self, name: &str) -> Option<&Self> {
        let Self::Section(entries) = self else { return None };
        entries.iter().find(|(it, _)| *it == name).map(|(_, node)| node)
    }

    /// Returns the sections in a section.
    pub fn sections(&self) -> impl Iterator<Item = (&'text str, &Self)> {
        let entries = if let Self::Section(entries) = self { entries.as_slice() } else { &[] };
        let is_section = |node: &Self| matches!(node, Self::Section(_));
        entries.iter().filter(move |(_, node)| is_section(node)).map(|(name, node)| (*name, node))
    }

    pub fn number(&self) -> Option<u64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    pub fn text(&self) -> Option<&'text str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub fn list(&self) -> Option<&[Self]> {
        if let Self::List(list) = self { Some(list) } else { None }
    }
}

/// Parses a whole text as one section; `None` if it is malformed.
pub fn parse(text: &str) -> Option<Node<'_>> {
    let mut parser = Parser { rest: text.trim_end_matches('\0'), nodes_left: NODES_MAX };
    let root = parser.section(DEPTH_MAX)?;
    parser.rest.is_empty().then_some(root)
}

struct Parser<'text> {
    rest: &'text str,
    nodes_left: u32,
}

impl<'text> Parser<'text> {
    /// Parses up to the closing brace, which is not consumed, or to the end.
    fn section(&mut self, depth_left: u32) -> Option<Node<'text>> {
        let depth_left = depth_left.checked_sub(1)?;
        let mut entries = Vec::new();
        loop {
            self.skip_blanks();
            if self.rest.is_empty() || self.rest.starts_with('}') {
                return Some(Node::Section(entries));
            }
            let name = self.word()?;
            self.skip_blanks();
            let node = if self.take("=") {
                self.value()?
            } else if self.take("{") {
                let section = self.section(depth_left)?;
                self.take("}").then_some(section)?
            } else {
                return None;
            };
            entries.push((name, node));
        }
    }

    fn value(&mut self) -> Option<Node<'text>> {
        self.skip_blanks();
        if !self.take("[") {
            return self.scalar();
        }
        let mut list = Vec::new();
        loop {
            self.skip_blanks();
            if self.take("]") {
                return Some(Node::List(list));
            }
            list.push(self.scalar()?);
            self.skip_blanks();
            self.take(",");
        }
    }

    fn scalar(&mut self) -> Option<Node<'text>> {
        if !self.take("\"") {
            // Negative numbers (`read_ahead = -1`) and other unused values are words.
            let word = self.word()?;
            return Some(word.parse().map_or(Node::Text(word), Node::Number));
        }
        self.count()?;
        // A quote in a string is escaped; no string that is used has one.
        let mut escaped = false;
        let end = self.rest.find(|character| {
            let ends = character == '"' && !escaped;
            escaped = character == '\\' && !escaped;
            ends
        })?;
        let text = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Some(Node::Text(text))
    }

    /// Parses a name or a number.
    fn word(&mut self) -> Option<&'text str> {
        self.count()?;
        let ends = |character: char| !(character.is_alphanumeric() || "_-+.".contains(character));
        let (word, rest) = self.rest.split_at(self.rest.find(ends).unwrap_or(self.rest.len()));
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }

    fn take(&mut self, what: &str) -> bool {
        let rest = self.rest.strip_prefix(what);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn skip_blanks(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            if !self.rest.starts_with('#') {
                return;
            }
            self.rest = self.rest.split_once('\n').map_or("", |(_, rest)| rest);
        }
    }

    fn count(&mut self) -> Option<()> {
        self.nodes_left = self.nodes_left.checked_sub(1)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_with_comments_lists_and_sections() {
        let text = "# made by hand\nvg {\n size = 8 # sectors\n tags = [\"a\", \"b\\\"c\", 3]\n\
                    flags = []\n in-ner { x_1 = \"}\" }\n}\ncontents = \"text\"\n\0";
        let root = parse(text).unwrap();
        let group = root.get("vg").unwrap();
        assert_eq!(group.get("size").unwrap().number(), Some(8));
        let tags = group.get("tags").unwrap().list().unwrap();
        assert_eq!(tags, [Node::Text("a"), Node::Text("b\\\"c"), Node::Number(3)]);
        assert_eq!(group.get("flags").unwrap().list(), Some(&[][..]));
        assert_eq!(group.sections().map(|(name, _)| name).collect::<Vec<_>>(), ["in-ner"]);
        assert_eq!(root.get("contents").unwrap().text(), Some("text"));
    }

    #[test]
    fn what_is_no_such_text_is_refused() {
        let deep = "a {".repeat(1000);
        let long = "a = 1 ".repeat(NODES_MAX as usize);
        for text in ["a", "a = ", "a = [1", "a = \"x", "a { b = 1", "}", "= 1", &deep, &long] {
            assert_eq!(parse(text), None, "{}", &text[..text.len().min(20)]);
        }
    }
}
