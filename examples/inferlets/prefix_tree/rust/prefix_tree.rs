//! Goes on with each path of a tree of beginnings. The tokens of a node are computed once, for all paths below it, and
//! a branch goes as soon as nothing below it is left.

use std::future::Future;
use std::pin::Pin;

use inferlet::{try_join_all, Args, Context, Result};

inferlet::main!(main);

const PARTS: [[&str; 2]; 3] =
    [["Once upon a time,", "One winter day,"], [" a fox", " an old bee"], [" found a key", " lost a hat"]];

async fn main(args: Args) -> Result<Vec<String>> {
    let default = PARTS.map(|level| level.map(String::from).to_vec()).to_vec();
    let parts: Vec<Vec<String>> = args.or("parts", default)?;
    let tokens = args.or("tokens", 8)?;
    args.finish()?;
    let paths = grow(Context::new(args.model())?, &parts, tokens).await?;
    args.send(paths.join("\n") + "\n").await?;
    Ok(paths)
}

type Paths<'a> = Pin<Box<dyn Future<Output = Result<Vec<String>>> + 'a>>;

fn grow(mut node: Context, parts: &[Vec<String>], tokens: usize) -> Paths<'_> {
    Box::pin(async move {
        let (level, rest) = match parts.split_first() {
            Some(split) => split,
            None => {
                node.generate(tokens).text().await?;
                return Ok(vec![node.text()?]);
            }
        };
        let mut branches = Vec::new();
        for part in level {
            let mut branch = node.fork()?;
            branch.fill(part);
            branches.push(branch);
        }
        try_join_all(branches.iter_mut().map(Context::flush)).await?;
        let paths = try_join_all(branches.into_iter().map(|branch| grow(branch, rest, tokens))).await?;
        Ok(paths.into_iter().flatten().collect())
    })
}
