//! Goes on with a prompt by guesses of `length` tokens, each checked at once: from the text itself ("lookup"), by a
//! second context ("context"), or by another model, which is named; "": without guesses.

use std::cell::Cell;
use std::rc::Rc;

use inferlet::{prompt_lookup, Args, Context, Draft, Guess, Json, Result};

inferlet::main!(main);

const PROMPT: &str = "<|begin|><|user|>What is 47 + 38?<|end|><|assistant|>";
const LAST: usize = 64;

/// A draft by a context that follows the text: of another model, or one that sees only the end of the text.
struct Follower {
    ctx: Context,
    length: usize,
    last: usize,
    start: Option<usize>,
}

impl Draft for Follower {
    fn guess<'a>(&'a mut self, tokens: &'a [u32]) -> Guess<'a> {
        Box::pin(async move {
            let seen = &tokens[*self.start.get_or_insert(tokens.len().saturating_sub(self.last))..];
            let same = self.ctx.tokens()?.iter().zip(seen).take_while(|(one, other)| one == other).count();
            self.ctx.truncate(same)?.fill_tokens(&seen[same..])?;
            self.ctx.generate(self.length).text().await?;
            Ok(self.ctx.tokens()?[seen.len()..].to_vec())
        })
    }
}

/// Counts what a draft is asked for.
struct Counted(Box<dyn Draft>, Rc<Cell<usize>>);

impl Draft for Counted {
    fn guess<'a>(&'a mut self, tokens: &'a [u32]) -> Guess<'a> {
        self.1.set(self.1.get() + 1);
        self.0.guess(tokens)
    }
}

async fn main(args: Args) -> Result<Json> {
    let prompt = args.or("prompt", PROMPT.to_string())?;
    let (draft, length) = (args.or("draft", "lookup".to_string())?, args.or("length", 8)?);
    let tokens = args.or("tokens", 80)?;
    args.finish()?;
    let guess: Option<Box<dyn Draft>> = match draft.as_str() {
        "" => None,
        "lookup" => Some(Box::new(prompt_lookup(3, length))),
        "context" => Some(Box::new(Follower { ctx: Context::new(args.model())?, length, last: LAST, start: None })),
        model => Some(Box::new(Follower { ctx: Context::new(model)?, length, last: usize::MAX, start: None })),
    };
    let counted = Rc::new(Cell::new(0));
    let is_drafted = guess.is_some();
    let mut ctx = Context::new(args.model())?;
    ctx.fill(prompt);
    let mut generation = ctx.generate(tokens);
    if let Some(guess) = guess {
        generation = generation.draft(Counted(guess, counted.clone()));
    }
    args.stream(&mut generation).await?;
    let tokens = generation.tokens();
    let forwards = if is_drafted { counted.get() } else { tokens.len() };
    let tokens = tokens.iter().map(|token| Json::from(*token)).collect();
    Ok(Json::object([("tokens", Json::List(tokens)), ("forwards", Json::from(forwards))]))
}
