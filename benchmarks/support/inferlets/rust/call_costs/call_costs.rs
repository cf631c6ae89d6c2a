//! As call_costs.py, for the calls of layer "control" that need little beside them. None of the time is counted as the
//! guest's own.

use inferlet::raw::{allocate, blobs, core, forward, fused, input_text, output_text, tokenize};
use inferlet::{Args, Error, Json, Result};

inferlet::main!(main);

const TEXT: &str = "The old clock in the hall struck nine.";

struct World {
    model: String,
    queue: u32,
    sampler: u32,
    detokenizer: u32,
    pages: [u32; 2], // as ranges
    input: [u32; 2],
    output: [u32; 2],
    position: u32,
}

impl World {
    fn new(model: &str) -> Result<World> {
        let queue = core::create_queue(model)?;
        let tokens = tokenize::tokenize(queue, TEXT, false)?;
        let position = tokens.len() as u32;
        let pages = [allocate::alloc(queue, allocate::Memory::Kvpage, 4)?, 4];
        let inputs = [allocate::alloc(queue, allocate::Memory::Emb, position)?, position];
        let output = [allocate::alloc(queue, allocate::Memory::Emb, 1)?, 1];
        let positions: Vec<u32> = (0..position).collect();
        forward::forward(queue, &pages, &inputs, &pages, &output, &tokens, &positions, &[], "", 0, 0, 0.0, false)?;
        let input = [inputs[0], 1];
        input_text::embed_txt(queue, &[100], &[position], &input)?;
        let sampler = fused::create_sampler("{\"temperature\": 0}")?;
        let detokenizer = tokenize::create_detokenizer(queue)?;
        Ok(World { model: model.to_string(), queue, sampler, detokenizer, pages, input, output, position })
    }

    /// Makes a call `count` times; the futures, handles or addresses that it gives.
    fn block(&self, name: &str, count: usize) -> Result<Vec<u32>> {
        let (queue, position) = (self.queue, self.position);
        let (pages, input, output) = (&self.pages, &self.input, &self.output);
        match name {
            "get_arg" => repeat(count, || nothing(core::get_arg())),
            "get_env" => repeat(count, || nothing(core::get_env())),
            "available_models" => repeat(count, || nothing(core::available_models())),
            "blob_names" => repeat(count, || nothing(blobs::blob_names())),
            "usage" => repeat(count, || nothing(core::usage())),
            "get_model_info" => repeat(count, || nothing(core::get_model_info(&self.model)?)),
            "send" => repeat(count, || Ok(core::send(0, "")?.unwrap_or(0))),
            "set_result" => repeat(count, || nothing(core::set_result("\"nine\"")?)),
            "log" => repeat(count, || nothing(core::log(core::LogLevel::Info, "nine")?)),
            "sleep" => repeat(count, || Ok(core::sleep(1 << 40)?)),
            "receive" => repeat(count, || Ok(core::receive(0)?)),
            "synchronize" => repeat(count, || Ok(core::synchronize(queue)?)),
            "set_queue_priority" => repeat(count, || nothing(core::set_queue_priority(queue, 0)?)),
            "tokenize" => repeat(count, || nothing(tokenize::tokenize(queue, TEXT, false)?)),
            "detokenize" => repeat(count, || nothing(tokenize::detokenize(queue, &[100, 101])?)),
            "push_tokens" => repeat(count, || nothing(tokenize::push_tokens(self.detokenizer, &[100])?)),
            "create_sampler" => repeat(count, || Ok(fused::create_sampler("{\"temperature\": 0}")?)),
            "alloc" => repeat(count, || Ok(allocate::alloc(queue, allocate::Memory::Kvpage, 1)?)),
            "set_positions" => repeat(count, || nothing(forward::set_positions(queue, &[position], input)?)),
            "embed_txt" => repeat(count, || nothing(input_text::embed_txt(queue, &[100], &[position], input)?)),
            "forward" => repeat(count, || {
                nothing(forward::forward(queue, pages, input, &[], output, &[], &[], &[], "", 0, 0, 0.0, false)?)
            }),
            "sample" => repeat(count, || Ok(fused::sample(queue, output[0], self.sampler, &[], "", 0)?)),
            "get_next_dist" => repeat(count, || Ok(output_text::get_next_dist(queue, output, 0, 1.0)?)),
            _ => Err(Error::new(format!("no call {name} is measured in Rust"))),
        }
    }

    /// Gives back what a block has made, and waits until all is done.
    fn settle(&self, name: &str, made: Vec<u32>) -> Result<()> {
        for one in made {
            match name {
                "sleep" | "receive" => core::cancel(one)?,
                "create_sampler" => core::drop(one)?,
                "alloc" => allocate::dealloc(self.queue, allocate::Memory::Kvpage, &[one, 1])?,
                "get_next_dist" => drop(output_text::await_dists(one)?),
                "sample" | "synchronize" | "send" if one != 0 => drop(core::await_number(one)?),
                _ => {}
            }
        }
        core::await_number(core::synchronize(self.queue)?)?;
        Ok(())
    }

    /// Nanoseconds of processor time for a call.
    fn measure(&self, name: &str, count: usize) -> Result<f64> {
        self.settle(name, Vec::new())?;
        let look = (0..4).map(|_| Ok(-used()? + used()?)).collect::<Result<Vec<f64>>>()?;
        let start = used()?;
        let made = self.block(name, count)?;
        let elapsed = used()? - start;
        self.settle(name, made)?;
        Ok((elapsed - look.into_iter().fold(f64::INFINITY, f64::min)) / count as f64)
    }
}

fn repeat(count: usize, mut call: impl FnMut() -> Result<u32>) -> Result<Vec<u32>> {
    let mut made = Vec::with_capacity(count);
    for _ in 0..count {
        made.push(call()?);
    }
    Ok(made)
}

fn nothing<T>(_: T) -> Result<u32> {
    Ok(0)
}

/// Nanoseconds of processor time of this inferlet: they stand still while others have their turns.
fn used() -> Result<f64> {
    let usage = Json::parse(&core::usage())?;
    usage.get("cpu_nanoseconds").and_then(Json::as_f64).ok_or_else(|| Error::new("usage has no cpu_nanoseconds"))
}

async fn main(args: Args) -> Result<()> {
    let world = World::new(&args.model())?;
    args.send("ready").await?;
    loop {
        let order = Json::parse(&args.receive().await?)?;
        let name = order.items()[0].as_str().unwrap_or("").to_string();
        let count = order.items()[2].as_i64().unwrap_or(1) as usize;
        args.send(&format!("[{}, 0]", world.measure(&name, count)?)).await?;
    }
}
