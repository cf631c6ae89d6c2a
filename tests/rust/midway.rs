//! What a program does in the middle of a generation, and between two steps of a context.

use inferlet::raw::{allocate, forward, output_text};
use inferlet::*;

/// A generation that has begun goes to the client: its first piece, the rest, and the text of the context; first without
/// a stop string, then with one. At last all of the text, as it is without stopping.
pub async fn begun(ctx: &mut Context, args: &Args) -> Result<Json> {
    let all = ctx.fork()?.generate(60).ignore_stop_tokens().text().await?;
    let mut found = Vec::new();
    for stop in [None, all.get(all.len() - 8..)] {
        let mut fork = ctx.fork()?;
        let mut generation = fork.generate(60).ignore_stop_tokens();
        if let Some(stop) = stop {
            generation = generation.stop(stop);
        }
        let piece = generation.next().await?.unwrap_or_default();
        let given_up = first(args.stream(&mut generation), std::future::ready(())).await;
        let rest = match given_up {
            First::This(rest) => rest?,
            First::Other(()) => args.stream(&mut generation).await?,
        };
        args.send("|").await?;
        drop(generation);
        found.extend([piece.into(), rest.into(), fork.text()?.into()]);
    }
    found.push(all.into());
    Ok(Json::List(found))
}

/// Whether the distributions of a context are those of a new one, after steps of the program's own on its queue.
pub async fn raw(ctx: &mut Context) -> Result<Json> {
    let mut found = Vec::new();
    for _ in 0..4 {
        let dist = ctx.next_dist(5, 1.0).await?;
        step(ctx.raw_parts().0).await?;
        ctx.fill_tokens(&dist.tokens[..1])?;
        let mut fresh = Context::new(&ctx.model().name)?;
        fresh.fill_tokens(ctx.tokens()?)?;
        let tokens = ctx.next_dist(5, 1.0).await?.tokens;
        found.push((tokens == fresh.next_dist(5, 1.0).await?.tokens).into());
    }
    Ok(Json::List(found))
}

/// A step in pages of its own.
async fn step(queue: u32) -> Result<()> {
    let page = allocate::alloc(queue, allocate::Memory::Kvpage, 1)?;
    let embed = allocate::alloc(queue, allocate::Memory::Emb, 2)?;
    let (pages, output) = ([page, 1], [embed + 1, 1]);
    let number = forward::forward(queue, &pages, &[embed, 1], &pages, &output, &[65], &[0], &[], "", 0, 5, 1.0, false)?;
    HostFuture::new(number, output_text::await_dists).await.map(drop)
}

/// A prompt longer than the embeds that are left, whose chunks wait for each other. Then what is refused where there are
/// few pages and embeds, and that nothing stays of it: what the inferlet holds behind a prompt for which there are no pages,
/// and how many pages more it has behind a generation for which there is no embed.
pub async fn narrow(ctx: &mut Context) -> Result<Json> {
    let holds = |what: &str| Json::parse(&raw::core::usage()).map(|usage| usage.get(what).and_then(Json::as_i64));
    let taken = [allocate::alloc(ctx.raw_parts().0, allocate::Memory::Emb, 1100)?, 1100];
    let mut parted = Context::new(&ctx.model().name)?;
    parted.fill("the cat sat on the mat and ".repeat(25));
    let mut found = vec![parted.flush().await.err().map(|error| error.message).to_json()];
    allocate::dealloc(ctx.raw_parts().0, allocate::Memory::Emb, &taken)?;
    drop(parted);
    let mut long = Context::new(&ctx.model().name)?;
    long.fill("the cat sat on the mat and ".repeat(120));
    found.push(long.flush().await.err().map(|error| error.code.name()).to_json());
    while holds("embeds")? > Some(1) {
        sleep(std::time::Duration::from_millis(1)).await?; // the output of the prompt stays
    }
    drop(long);
    ctx.flush().await?;
    while allocate::alloc(ctx.raw_parts().0, allocate::Memory::Emb, 1).is_ok() {}
    let (mut fork, before) = (ctx.fork()?, holds("pages")?);
    found.push(fork.generate(400).text().await.err().map(|error| error.code.name()).to_json());
    found.push((holds("pages")? == before).into());
    Ok(Json::List(found))
}
