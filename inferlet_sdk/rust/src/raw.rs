//! Every call of the API as it is. Written by `scripts/update_rust` from the WIT files.

#![allow(clippy::too_many_arguments)]

pub mod allocate {
    use crate::abi::{call, Error};

    /// Pages of the KV cache, embedding slots, and pages that are reserved: these have no memory yet, and are for decode runs only. A run
    /// takes memory for each as it reaches it. They count as pages that the inferlet holds. Those that no run has reached can be given back,
    /// or named to the next run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Memory { Kvpage, Emb, ReservedKvpage }

    /// Allocates memory; returns the first of `count` addresses, the others follow it.
    pub fn alloc(queue: u32, kind: Memory, count: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/allocate@0.3.0")]
        extern "C" {
            #[link_name = "alloc"]
            fn import(_: u32, _: u32, _: u32, _: *mut u8);
        }
        unsafe { call(|result| import(queue, kind as u32, count, result)) }
    }

    /// Gives ranges of addresses back once all earlier commands have taken effect. They are invalid at once. Reserved pages are pages here.
    pub fn dealloc(queue: u32, kind: Memory, addresses: &[u32]) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/allocate@0.3.0")]
        extern "C" {
            #[link_name = "dealloc"]
            fn import(_: u32, _: u32, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("dealloc", &[crate::abi::size_of(addresses)])?;
        unsafe { call(|result| import(queue, kind as u32, addresses.as_ptr().cast(), addresses.len(), result)) }
    }

    /// Copies tokens from slots to slots; the address of a slot is page * page-size + offset. Source slots must be filled; target
    /// slots become filled. `source` and `target` have the same number of slots.
    pub fn copy_kvpage(queue: u32, source: &[u32], target: &[u32]) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/allocate@0.3.0")]
        extern "C" {
            #[link_name = "copy-kvpage"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("copy-kvpage", &[crate::abi::size_of(source), crate::abi::size_of(target)])?;
        unsafe { call(|result| import(queue, source.as_ptr().cast(), source.len(), target.as_ptr().cast(), target.len(), result)) }
    }

    /// Copies embeds to as many others, with their positions: inputs or outputs of a forward, which must be filled. All are read before
    /// any is written.
    pub fn copy_emb(queue: u32, source: &[u32], target: &[u32]) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/allocate@0.3.0")]
        extern "C" {
            #[link_name = "copy-emb"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("copy-emb", &[crate::abi::size_of(source), crate::abi::size_of(target)])?;
        unsafe { call(|result| import(queue, source.as_ptr().cast(), source.len(), target.as_ptr().cast(), target.len(), result)) }
    }

    /// Keeps the first `keep` slots of the pages, counted along the list, and frees the other slots for new tokens.
    /// (Not in the paper: it drops what run-ahead computed past a stop.)
    pub fn trim_kvpage(queue: u32, pages: &[u32], keep: u32) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/allocate@0.3.0")]
        extern "C" {
            #[link_name = "trim-kvpage"]
            fn import(_: u32, _: *const u8, _: usize, _: u32, _: *mut u8);
        }
        crate::abi::check_size("trim-kvpage", &[crate::abi::size_of(pages)])?;
        unsafe { call(|result| import(queue, pages.as_ptr().cast(), pages.len(), keep, result)) }
    }
}

pub mod blobs {
    use crate::abi::{call, Error};

    /// Names of the blobs that came with the launch, while there are any.
    pub fn blob_names() -> Vec<String> {
        #[link(wasm_import_module = "pie:inferlet/blobs@0.3.0")]
        extern "C" {
            #[link_name = "blob-names"]
            fn import(_: *mut u8);
        }
        unsafe { call(|result| import(result)) }
    }

    /// A handle of a blob. It is kept until its last handle is dropped (`core.drop`), or the inferlet ends.
    pub fn open_blob(name: &str) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/blobs@0.3.0")]
        extern "C" {
            #[link_name = "open-blob"]
            fn import(_: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("open-blob", &[name.len()])?;
        unsafe { call(|result| import(name.as_ptr().cast(), name.len(), result)) }
    }

    /// Bytes from `offset` on as base64, fewer at the end; at most 262144 at a time. And the size of the blob in bytes.
    pub fn read_blob(blob: u32, offset: u32, length: u32) -> Result<(String, u32), Error> {
        #[link(wasm_import_module = "pie:inferlet/blobs@0.3.0")]
        extern "C" {
            #[link_name = "read-blob"]
            fn import(_: u32, _: u32, _: u32, _: *mut u8);
        }
        unsafe { call(|result| import(blob, offset, length, result)) }
    }
}

pub mod children {
    use crate::abi::{call, Error};

    /// Launches a child. `program` is the hash of a program that the tenant has, the beginning of one, or a name; "": that of this inferlet.
    /// Returns its handle at once; that it cannot be launched is told by `join`. `options` is a JSON object, or ""; a key that is not listed
    /// here is refused.
    ///
    /// - `environment`: an object of texts, for `get-env`, which also has `parent` there.
    /// - `limits`: what the child may hold at most, with its own children: `memory_bytes`, `cpu_seconds`, `max_pages`, `max_embeds`,
    ///   `max_queues`, `max_children`. By default and at most that of this inferlet. What children hold always counts as held by this one,
    ///   too.
    ///
    /// `quota-exceeded`: as many of the family run as may, or the inferlet has 4 generations above it.
    pub fn launch(program: &str, arguments: &[&str], options: &str) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/children@0.3.0")]
        extern "C" {
            #[link_name = "launch"]
            fn import(_: *const u8, _: usize, _: *const u8, _: usize, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("launch", &[program.len(), crate::abi::size_of_texts(arguments), options.len()])?;
        let arguments = crate::abi::texts(arguments);
        unsafe { call(|result| import(program.as_ptr().cast(), program.len(), arguments.as_ptr().cast(), arguments.len(), options.as_ptr().cast(), options.len(), result)) }
    }

    /// A future of a child's end, for `await-text`; as many as you like. It fails with `not-found` (no such program), `invalid-argument` or
    /// `exhausted` (no room for further inferlets) if the child cannot be launched. The text is a JSON object: `inferlet` (id), `status`
    /// ("finished", "failed", "terminated", ...), `result` (JSON as text, or null), `error` (text, or null). Later versions may add keys.
    pub fn join(child: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/children@0.3.0")]
        extern "C" {
            #[link_name = "join"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(child, result)) }
    }

    /// Ends a child soon, and its children; nothing happens if it has ended.
    pub fn cancel_child(child: u32) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/children@0.3.0")]
        extern "C" {
            #[link_name = "cancel-child"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(child, result)) }
    }
}

pub mod core {
    use crate::abi::{call, Error};

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LogLevel { Debug, Info, Warning, Error }

    /// The arguments given at launch.
    pub fn get_arg() -> Vec<String> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "get-arg"]
            fn import(_: *mut u8);
        }
        unsafe { call(|result| import(result)) }
    }

    /// Launch metadata: `inferlet`, `program` and `user`, set by the server, and what the client added.
    pub fn get_env() -> Vec<(String, String)> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "get-env"]
            fn import(_: *mut u8);
        }
        unsafe { call(|result| import(result)) }
    }

    /// Sends a message: to 0, to the client that launched the inferlet, or the parent; to a child, by its handle. A message to a child that
    /// has ended is dropped. None: it is on its way. A future, for `await-number`: who gets it is slow, and the message goes when there is
    /// room; await it before you send more.
    pub fn send(to: u32, message: &str) -> Result<Option<u32>, Error> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "send"]
            fn import(_: u32, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("send", &[message.len()])?;
        unsafe { call(|result| import(to, message.as_ptr().cast(), message.len(), result)) }
    }

    /// A future of the next message, for `await-message`: from 0, of the client or the parent; of a child, or in a subscription, by its
    /// handle. Cancelled, it leaves the message to the next one.
    pub fn receive(source: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "receive"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(source, result)) }
    }

    /// A message: its text; who has sent it, which is the id of an inferlet for one that came to a topic, "parent", or "" for a client or a
    /// child; and the blobs (interface `blobs`) that came with it: names, and handles that belong to the program now. None: the child has
    /// ended, and all its messages are taken. `quota-exceeded`: the blobs do not fit beside what the inferlet holds. Then the message waits
    /// again, for the next `receive`.
    pub fn await_message(future: u32) -> Result<Option<(String, String, Vec<(String, u32)>)>, Error> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "await-message"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(future, result)) }
    }

    /// The final value, delivered to the client when the inferlet ends. The last call counts.
    pub fn set_result(value: &str) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "set-result"]
            fn import(_: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("set-result", &[value.len()])?;
        unsafe { call(|result| import(value.as_ptr().cast(), value.len(), result)) }
    }

    pub fn log(level: LogLevel, message: &str) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "log"]
            fn import(_: u32, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("log", &[message.len()])?;
        unsafe { call(|result| import(level as u32, message.as_ptr().cast(), message.len(), result)) }
    }

    /// Tells whoever traces the server of something that has just ended, and took so many microseconds: a span of the inferlet. `operation`:
    /// `execute_tool`, where `name` is that of a tool, or "" for what is the program's own. `error`: the kind of error by which it failed,
    /// or "". Without a trace nothing comes of it, and of more than 100 in a second some are dropped.
    pub fn span(operation: &str, name: &str, microseconds: u64, error: &str) {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "span"]
            fn import(_: *const u8, _: usize, _: *const u8, _: usize, _: u64, _: *const u8, _: usize);
        }
        unsafe { import(operation.as_ptr().cast(), operation.len(), name.as_ptr().cast(), name.len(), microseconds, error.as_ptr().cast(), error.len()) }
    }

    /// A future that is done after this number of nanoseconds, for `await-number`. (Clocks are those of WASI.)
    pub fn sleep(nanoseconds: u64) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "sleep"]
            fn import(_: u64, _: *mut u8);
        }
        unsafe { call(|result| import(nanoseconds, result)) }
    }

    /// Suspends until at least one of `futures` is done; returns the futures that are done, in the order given. A number that is
    /// no pending or done future counts as done: awaiting it returns the error. An empty list returns at once. An empty result of a
    /// list that is not: somebody asks where the program stands; say so by `log`, and wait again.
    pub fn wait(futures: &[u32]) -> Vec<u32> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "wait"]
            fn import(_: *const u8, _: usize, _: *mut u8);
        }
        unsafe { call(|result| import(futures.as_ptr().cast(), futures.len(), result)) }
    }

    /// Suspends until a future is done whose value is a number, and takes it: a token, or what else its call says; 0 of one that has nothing
    /// to tell (`sleep`, `synchronize`). All `await-*` functions suspend so, take what the future gives, and consume it.
    pub fn await_number(future: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "await-number"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(future, result)) }
    }

    /// The value of a future that is a text.
    pub fn await_text(future: u32) -> Result<String, Error> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "await-text"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(future, result)) }
    }

    /// The value of a future that is a list of numbers: log-probabilities, or scores of attention.
    pub fn await_floats(future: u32) -> Result<Vec<f32>, Error> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "await-floats"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(future, result)) }
    }

    /// Forgets a future; its command still takes effect. Cancelling twice is `not-found`.
    pub fn cancel(future: u32) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "cancel"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(future, result)) }
    }

    /// Drops the handle of a queue, sampler, detokenizer, matcher, blob, image, body, subscription or child; what was issued with it goes on.
    /// A queue ends once the commands that it holds have run. The connection of a body is closed. What waits in a subscription is dropped,
    /// and its futures fail as `cancelled`. Messages of a child, and its end, are dropped if they were not taken; a child that runs goes on.
    pub fn drop(handle: u32) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "drop"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(handle, result)) }
    }

    pub fn available_models() -> Vec<String> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "available-models"]
            fn import(_: *mut u8);
        }
        unsafe { call(|result| import(result)) }
    }

    /// A model as a JSON object: `name`, `architecture`, `page_size` (tokens in a page), `vocab_size`, `hidden_size` (numbers of a
    /// hidden state), `max_context` (most tokens that a context may hold), `max_batch_tokens` (most input tokens that run at once), `max_dist` (largest `k` of `get-next-dist`), `stop_tokens`
    /// (list of tokens after which generation ends), `bos_text` and `eos_text` (of the special tokens; null: none), `has_chat_template`,
    /// `image_token` (that stands for what is seen in an image; null: the model takes no images), `moves_tokens` (whether `shift-kvpage` can
    /// do so), `begin_tokens` and `end_tokens` (that stand before and behind a text which is for the model as a whole, and which `tokenize`
    /// does not add), `state_pages` (pages that the state of a text counts as; 0: the model keeps none, as `state` says), `pooling` (how hidden states become the vector of a text, for `get-embedding`; empty: the model was not made for that),
    /// `sampling` (an object of `temperature`, `top_k`, `top_p`, `min_p`, `typical_p` and `repetition_penalty`, as the model's authors advise; what they leave out is not there), `adapters` (names of the LoRA adapters that it has now, for `forward` and `decode`: the operator may drop them at any time;
    /// empty where there can be none), and `traits`, what it implements: a list of objects with `name`, `version` (of its functions: that of
    /// this package), `functions` (names as here) and `supertraits` (names). Later versions may add keys: ignore those that you do not know.
    pub fn get_model_info(model: &str) -> Result<String, Error> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "get-model-info"]
            fn import(_: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("get-model-info", &[model.len()])?;
        unsafe { call(|result| import(model.as_ptr().cast(), model.len(), result)) }
    }

    /// A handle of a new queue.
    pub fn create_queue(model: &str) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "create-queue"]
            fn import(_: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("create-queue", &[model.len()])?;
        unsafe { call(|result| import(model.as_ptr().cast(), model.len(), result)) }
    }

    /// A future that is done when every command issued to the queue so far has taken effect, for `await-number`.
    pub fn synchronize(queue: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "synchronize"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(queue, result)) }
    }

    /// Queues with a higher priority go first; a new queue has priority 0.
    pub fn set_queue_priority(queue: u32, priority: i32) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "set-queue-priority"]
            fn import(_: u32, _: i32, _: *mut u8);
        }
        unsafe { call(|result| import(queue, priority, result)) }
    }

    /// The resources that the inferlet holds now, and its limits, as a JSON object of whole numbers: `pages`, `max_pages`, `embeds`,
    /// `max_embeds`, `queues`, `max_queues`, `futures`, `max_futures`, `max_memory_bytes`, `cpu_nanoseconds`, `max_cpu_nanoseconds`.
    /// Later versions may add keys: ignore those that you do not know.
    pub fn usage() -> String {
        #[link(wasm_import_module = "pie:inferlet/core@0.3.0")]
        extern "C" {
            #[link_name = "usage"]
            fn import(_: *mut u8);
        }
        unsafe { call(|result| import(result)) }
    }
}

pub mod embedding {
    use crate::abi::{call, Error};

    /// A future of one vector for a text, pooled from the hidden states behind the last norm at output embeds, for `await-text`: base64 of
    /// little-endian f32, since a list costs some guests much for each number. `pooling`: `last` (the state at the last embed that is named)
    /// or `mean` (over all of them). The first `dimensions` numbers are kept (0: all, as many as `hidden_size` of `get-model-info`), and then
    /// divided by their length if `normalize`. At most `max_batch_tokens` embeds.
    pub fn get_embedding(queue: u32, embeds: &[u32], pooling: &str, dimensions: u32, normalize: bool) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/embedding@0.3.0")]
        extern "C" {
            #[link_name = "get-embedding"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: u32, _: u32, _: *mut u8);
        }
        crate::abi::check_size("get-embedding", &[crate::abi::size_of(embeds), pooling.len()])?;
        unsafe { call(|result| import(queue, embeds.as_ptr().cast(), embeds.len(), pooling.as_ptr().cast(), pooling.len(), dimensions, u32::from(normalize), result)) }
    }
}

pub mod exports {
    use crate::abi::{call, Error};

    /// Gives pages a name, of at most 256 bytes. An older export of this name makes room. `tokens`: what they hold, base64 of
    /// little-endian u32 in the order of the slots, or "": not told. The future, for `await-number`, is done when the worker has run all that
    /// writes the pages; imports of the name wait for it, but those of an interactive inferlet not for one of a batch job. A program that
    /// ends before has exported nothing.
    pub fn export_kvpage(queue: u32, name: &str, pages: &[u32], tokens: &str) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/exports@0.3.0")]
        extern "C" {
            #[link_name = "export-kvpage"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("export-kvpage", &[name.len(), crate::abi::size_of(pages), tokens.len()])?;
        unsafe { call(|result| import(queue, name.as_ptr().cast(), name.len(), pages.as_ptr().cast(), pages.len(), tokens.as_ptr().cast(), tokens.len(), result)) }
    }

    /// A future of pages that were exported under a name, for `await-import`. Without such an export it fails as `not-found`, and costs
    /// little. Exports are kept where they were made: with several workers, an inferlet finds those of the one that serves it.
    pub fn import_kvpage(queue: u32, name: &str) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/exports@0.3.0")]
        extern "C" {
            #[link_name = "import-kvpage"]
            fn import(_: u32, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("import-kvpage", &[name.len()])?;
        unsafe { call(|result| import(queue, name.as_ptr().cast(), name.len(), result)) }
    }

    /// First address and number of pages, and a JSON object: `tokens` (as they were told, or ""), `positions` (base64 of little-endian
    /// s32, one for each slot; -1: no token), `hidden` (list of ranges of slots that `mask-kvpage` has hidden, counted along the pages).
    /// Later versions may add keys: ignore those that you do not know. The pages count as held by this inferlet.
    pub fn await_import(future: u32) -> Result<(u32, u32, String), Error> {
        #[link(wasm_import_module = "pie:inferlet/exports@0.3.0")]
        extern "C" {
            #[link_name = "await-import"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(future, result)) }
    }

    /// Takes a name back. The future, for `await-number`, fails as `not-found` if there is no such export.
    pub fn unexport_kvpage(queue: u32, name: &str) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/exports@0.3.0")]
        extern "C" {
            #[link_name = "unexport-kvpage"]
            fn import(_: u32, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("unexport-kvpage", &[name.len()])?;
        unsafe { call(|result| import(queue, name.as_ptr().cast(), name.len(), result)) }
    }

    /// A future of the exports whose names begin with `prefix`, for `await-text`: at most 256, the last used ones first. The text is a JSON
    /// list of objects: `name`, `pages` and `tokens` (numbers of them). Later versions may add keys: ignore those that you do not know.
    pub fn list_exports(queue: u32, prefix: &str) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/exports@0.3.0")]
        extern "C" {
            #[link_name = "list-exports"]
            fn import(_: u32, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("list-exports", &[prefix.len()])?;
        unsafe { call(|result| import(queue, prefix.as_ptr().cast(), prefix.len(), result)) }
    }

    /// Offers full pages that hold the beginning of a text to all inferlets of the tenant whose texts begin alike. `tokens`: those of all
    /// slots of the pages, which are at the positions 0, 1, 2, ..., base64 of little-endian u32. What is there already is not kept twice.
    /// At a model that keeps states, one is behind all these tokens, and they need not fill the last page.
    /// `apart`, of at most 1024 bytes: only who gives the same finds it. Otherwise as `export-kvpage`; these exports have no name.
    pub fn export_prefix(queue: u32, pages: &[u32], tokens: &str, apart: &str) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/exports@0.3.0")]
        extern "C" {
            #[link_name = "export-prefix"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("export-prefix", &[crate::abi::size_of(pages), tokens.len(), apart.len()])?;
        unsafe { call(|result| import(queue, pages.as_ptr().cast(), pages.len(), tokens.as_ptr().cast(), tokens.len(), apart.as_ptr().cast(), apart.len(), result)) }
    }

    /// A future of the pages of the longest beginning of a text that was offered, for `await-prefix`; it waits for what is being written.
    pub fn import_prefix(queue: u32, tokens: &str, apart: &str) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/exports@0.3.0")]
        extern "C" {
            #[link_name = "import-prefix"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("import-prefix", &[tokens.len(), apart.len()])?;
        unsafe { call(|result| import(queue, tokens.as_ptr().cast(), tokens.len(), apart.as_ptr().cast(), apart.len(), result)) }
    }

    /// First address and number of pages, all of them full; 0: there are none. They count as held by this inferlet. At a model that keeps
    /// states, one is behind all of their tokens, which may be fewer: `find-state` says how many.
    pub fn await_prefix(future: u32) -> Result<(u32, u32), Error> {
        #[link(wasm_import_module = "pie:inferlet/exports@0.3.0")]
        extern "C" {
            #[link_name = "await-prefix"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(future, result)) }
    }

    /// Pins exports for some seconds, at most 86400 from now on: they do not go when memory is short. Those of a name, or with the name ""
    /// those that have the beginning of a text, by `tokens` and `apart` as of `import-prefix`. A future for `await-text`: a JSON object with
    /// `pages`, how many of the pages that were asked for are pinned, from the first one on. They are fewer if not all are there, or if more
    /// would be pinned than a quarter of the pages that the tenant may hold. `known`: how many there are, or are being written, from the first
    /// one on; with 0 seconds nothing else happens. Later versions may add keys.
    pub fn pin_exports(queue: u32, name: &str, tokens: &str, apart: &str, seconds: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/exports@0.3.0")]
        extern "C" {
            #[link_name = "pin-exports"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: *const u8, _: usize, _: u32, _: *mut u8);
        }
        crate::abi::check_size("pin-exports", &[name.len(), tokens.len(), apart.len()])?;
        unsafe { call(|result| import(queue, name.as_ptr().cast(), name.len(), tokens.as_ptr().cast(), tokens.len(), apart.as_ptr().cast(), apart.len(), seconds, result)) }
    }
}

pub mod forward {
    use crate::abi::{call, Error};

    /// Runs the Transformer over the input embeds. Each query attends to the tokens of `context` pages at positions below its
    /// own, and causally to the other inputs of this call. Keys and values go to the next free slots of `output-pages`, in
    /// order; without output pages they are dropped after the call. `output-embeds` get the outputs of the last inputs, one
    /// each. An output embed used as an input keeps the position of the token that made it, unless `set-positions` gives it one.
    ///
    /// The other arguments are for what goes beside it, in any combination; empty, 0 and false leave it out. If a part is refused, nothing
    /// has happened. A part that belongs to a trait which the model lacks is refused by its name.
    ///
    /// - `tokens` at `positions`, as many as inputs, fill the input embeds first, as `embed-txt` does. Without them the inputs are filled
    ///   already.
    /// - `mask` says what each input sees in place of the rule by positions. For each input in turn: the number of its ranges of columns,
    ///   then first and length of each. Columns are the tokens in `context`, in the order of its filled slots, then the inputs of this call.
    ///   A hidden token has a column and stays hidden. An input that sees nothing is allowed, as are inputs that see later ones, but not in
    ///   more inputs than `max_batch_tokens`. A model with a window sees what is in both.
    /// - `adapter`: the name of a LoRA adapter of the model (`adapters` of `get-model-info`). Forwards of different adapters, and of
    ///   none, run in one batch. Keys and values are those that the adapter gives: the context should have been run with the same one. If it
    ///   is dropped before the command runs, the command fails.
    ///
    /// One thing can be read at once; the result is its future, or 0:
    ///
    /// - `sampler`: a token, sampled at the only output embed as by `sample` of `fused`; for `await-number`, and a token reference.
    /// - `temperature`: a distribution at the only output embed, as `get-next-dist` with this `k` and `temperature`; for `await-dists`.
    /// - `scores`: how much attention each token got, for `await-floats` (paper, section 4.4). The score of a token that the inputs saw is
    ///   the weight of attention that all of them together give to it, as the mean over heads and layers, so the scores of a call add up to
    ///   the number of its inputs: first those of the tokens of `context` that are not hidden and are at a smaller position than some input,
    ///   in their order, then those of the inputs. It costs much more than another `forward`: at most 4194304 pairs of an input and a token
    ///   that it may see, and as many inputs as go into one batch.
    pub fn forward(queue: u32, context: &[u32], input_embeds: &[u32], output_pages: &[u32], output_embeds: &[u32], tokens: &[u32], positions: &[u32], mask: &[u32], adapter: &str, sampler: u32, k: u32, temperature: f32, scores: bool) -> Result<u32, Error> {
        #[repr(C)]
        struct Arguments(u32, *const u8, usize, *const u8, usize, *const u8, usize, *const u8, usize, *const u8, usize, *const u8, usize, *const u8, usize, *const u8, usize, u32, u32, f32, bool);
        #[link(wasm_import_module = "pie:inferlet/forward@0.3.0")]
        extern "C" {
            #[link_name = "forward"]
            fn import(_: &Arguments, _: *mut u8);
        }
        crate::abi::check_size("forward", &[crate::abi::size_of(context), crate::abi::size_of(input_embeds), crate::abi::size_of(output_pages), crate::abi::size_of(output_embeds), crate::abi::size_of(tokens), crate::abi::size_of(positions), crate::abi::size_of(mask), adapter.len()])?;
        let arguments = Arguments(queue, context.as_ptr().cast(), context.len(), input_embeds.as_ptr().cast(), input_embeds.len(), output_pages.as_ptr().cast(), output_pages.len(), output_embeds.as_ptr().cast(), output_embeds.len(), tokens.as_ptr().cast(), tokens.len(), positions.as_ptr().cast(), positions.len(), mask.as_ptr().cast(), mask.len(), adapter.as_ptr().cast(), adapter.len(), sampler, k, temperature, scores);
        unsafe { call(|result| import(&arguments, result)) }
    }

    /// Hides tokens of pages from forwards issued from now on, and shows all other tokens of these pages. `hidden`: ranges of slots, counted
    /// along the list of pages, that hold tokens. A hidden token keeps its slot, which is not free, and its position.
    pub fn mask_kvpage(queue: u32, pages: &[u32], hidden: &[u32]) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/forward@0.3.0")]
        extern "C" {
            #[link_name = "mask-kvpage"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("mask-kvpage", &[crate::abi::size_of(pages), crate::abi::size_of(hidden)])?;
        unsafe { call(|result| import(queue, pages.as_ptr().cast(), pages.len(), hidden.as_ptr().cast(), hidden.len(), result)) }
    }

    /// Moves the tokens of pages by so many positions, forwards or backwards, without computing them again: their keys are rotated, for all
    /// that is issued from now on. Those that are hidden stay where they are. What tokens have seen when they were computed stays in them. Pages that were
    /// exported or imported are refused: copy their tokens to pages of your own. A model whose rotation depends on the length of the text
    /// cannot do it (`unsupported`; `moves_tokens` of `get-model-info`). Each move rounds the keys: in bfloat16 they are off by 0.2 % of
    /// their length after one move, and by 5 % after 100 of them, however far; so one long move is better than many short ones.
    pub fn shift_kvpage(queue: u32, pages: &[u32], by: i32) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/forward@0.3.0")]
        extern "C" {
            #[link_name = "shift-kvpage"]
            fn import(_: u32, _: *const u8, _: usize, _: i32, _: *mut u8);
        }
        crate::abi::check_size("shift-kvpage", &[crate::abi::size_of(pages)])?;
        unsafe { call(|result| import(queue, pages.as_ptr().cast(), pages.len(), by, result)) }
    }

    /// Gives filled embeds new positions (same number of both). An output embed that is fed back as an input needs one: otherwise it keeps
    /// the position of the token that made it, and cannot see that token.
    pub fn set_positions(queue: u32, positions: &[u32], embeds: &[u32]) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/forward@0.3.0")]
        extern "C" {
            #[link_name = "set-positions"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("set-positions", &[crate::abi::size_of(positions), crate::abi::size_of(embeds)])?;
        unsafe { call(|result| import(queue, positions.as_ptr().cast(), positions.len(), embeds.as_ptr().cast(), embeds.len(), result)) }
    }
}

pub mod fused {
    use crate::abi::{call, Error};

    /// `config` is a JSON object; what is left out, or null, has its default. A key that is not listed here is refused by name.
    ///
    /// - `temperature`: 0 is greedy; default 1.
    /// - `top_k`: only the most probable tokens; 0, the default: all.
    /// - `top_p`: only the most probable tokens that together reach this mass; default 1: all.
    /// - `min_p`: only tokens at least this fraction as probable as the most probable; 0, the default: all.
    /// - `typical_p`: of these only the tokens whose surprise is closest to the entropy, as many as reach this mass; default 1: all.
    /// - `repetition_penalty`: divides the logits of recent tokens (multiplies them if they are below zero); default 1: none.
    /// - `frequency_penalty`: subtracted from the logit of a recent token for each occurrence; default 0: none.
    /// - `presence_penalty`: subtracted once from the logit of a recent token; default 0: none.
    /// - `logit_bias`: an object of numbers by token id, as `{"42": -5}`, each from -1000 to 1000: what is added to the logits of at most
    ///   512 tokens, behind penalties.
    /// - `seed`: 0 to 2^64 - 1. The same seed gives the same tokens, whatever else is in the batch; by default a random seed.
    pub fn create_sampler(config: &str) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/fused@0.3.0")]
        extern "C" {
            #[link_name = "create-sampler"]
            fn import(_: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("create-sampler", &[config.len()])?;
        unsafe { call(|result| import(config.as_ptr().cast(), config.len(), result)) }
    }

    /// Samples a token at an output embed, on the worker. The future is also the token reference that `embed-txt` accepts before the
    /// value is known. `recent`: tokens that penalties count (token references of this queue are allowed). `allowed`: only tokens whose
    /// bit is set may come (base64 of bytes, lowest bit first; "": all). `logprobs`: how many log-probabilities come with the token; 0:
    /// none, and the future is for `await-number`. Otherwise it is for `await-scored-token`: 1 is that of the token itself, and up to 32
    /// more are those of the most probable tokens. They are those of `get-logprobs`: the model's own, whatever the sampler is.
    pub fn sample(queue: u32, embed: u32, sampler: u32, recent: &[u32], allowed: &str, logprobs: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/fused@0.3.0")]
        extern "C" {
            #[link_name = "sample"]
            fn import(_: u32, _: u32, _: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: u32, _: *mut u8);
        }
        crate::abi::check_size("sample", &[crate::abi::size_of(recent), allowed.len()])?;
        unsafe { call(|result| import(queue, embed, sampler, recent.as_ptr().cast(), recent.len(), allowed.as_ptr().cast(), allowed.len(), logprobs, result)) }
    }

    /// The token; then token ids and log-probabilities: of the token itself, and of the most probable ones in order.
    pub fn await_scored_token(future: u32) -> Result<(u32, Vec<u32>, Vec<f32>), Error> {
        #[link(wasm_import_module = "pie:inferlet/fused@0.3.0")]
        extern "C" {
            #[link_name = "await-scored-token"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(future, result)) }
    }

    /// Takes a token and adds it to a detokenizer; returns the token, and the text that it completes. Suspends until the token is
    /// there.
    pub fn take_text(future: u32, detokenizer: u32) -> Result<(u32, String), Error> {
        #[link(wasm_import_module = "pie:inferlet/fused@0.3.0")]
        extern "C" {
            #[link_name = "take-text"]
            fn import(_: u32, _: u32, _: *mut u8);
        }
        unsafe { call(|result| import(future, detokenizer, result)) }
    }

    /// The step behind the last `forward` of this queue that filled its inputs and read a distribution, without a mask: runs one token (a
    /// token reference is allowed) at the next position, with the same pages, output embed, adapter, `k` and `temperature` and the first of
    /// its input embeds; and gives what `await-dists` does. A program that looks at each distribution crosses once for a token, with two
    /// numbers, which saves 6 percent of a token's time where 64 run at once, and 25 where 256 do. Refused as `forward`, and if there was
    /// none before it whose lists of pages have at most 64 numbers. Suspends until the distribution is there.
    pub fn continue_with_dist(queue: u32, token: u32) -> Result<(String, String, Vec<f32>), Error> {
        #[link(wasm_import_module = "pie:inferlet/fused@0.3.0")]
        extern "C" {
            #[link_name = "continue-with-dist"]
            fn import(_: u32, _: u32, _: *mut u8);
        }
        unsafe { call(|result| import(queue, token, result)) }
    }

    /// A decode run: samples a token at `embed`; then, until `steps` tokens are sampled or one of `stop` is, puts the token at `position`
    /// (the next one at `position` + 1, and so on) into embed `input`, runs it over `context` and the run's own tokens, with its keys in
    /// the next free slot of `pages` and its output at `embed`, and samples again, without a trip through the program. So all its tokens
    /// but the last one are run. The queue's later commands come after the run; `embed` and `input` count as never filled from now on.
    ///
    /// The future is for `take-run`; `cancel` ends the run, and what was not taken is dropped. A slot is filled once the token after its own
    /// was delivered; the others of `pages` are free again at the end. Runs have at most 1024 steps and 64 stop tokens. `options` is a JSON
    /// object, or "": `recent` (tokens before the run that penalties count, together with those of the run), `window` (of all of these, only
    /// the last; 0, the default: all), `allowed` (as in `sample`), `logprobs` (of how many of the most probable tokens, 0 to 32,
    /// log-probabilities come beside those of the token; by default there are none), `adapter` (name of the adapter with which its tokens
    /// run; "", the default: none). A key that is not listed here is refused.
    ///
    /// With a `matcher` of `grammar` (0: none) the run keeps to a grammar: it goes on from where the matcher stands, and leaves that as it
    /// is. The worker follows the grammar beside its sampler, so no mask has to be sent. The run is over where nothing can follow but a stop
    /// token, and where `skip` tokens or more are forced (0: it goes on there; 1: where 10 or more are, which usually pays): run them in
    /// one `forward`, and go on behind them. Then `take-run` fails with `busy` if the worker has not compiled the grammar yet: issue the run
    /// again in a few milliseconds.
    pub fn decode(queue: u32, embed: u32, sampler: u32, input: u32, position: u32, context: &[u32], pages: &[u32], steps: u32, stop: &[u32], options: &str, matcher: u32, skip: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/fused@0.3.0")]
        extern "C" {
            #[link_name = "decode"]
            fn import(_: u32, _: u32, _: u32, _: u32, _: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: u32, _: u32, _: *mut u8);
        }
        crate::abi::check_size("decode", &[crate::abi::size_of(context), crate::abi::size_of(pages), crate::abi::size_of(stop), options.len()])?;
        unsafe { call(|result| import(queue, embed, sampler, input, position, context.as_ptr().cast(), context.len(), pages.as_ptr().cast(), pages.len(), steps, stop.as_ptr().cast(), stop.len(), options.as_ptr().cast(), options.len(), matcher, skip, result)) }
    }

    /// Takes the tokens of a run that were not taken yet (very many: a part of them), the text that each completes (none if `detokenizer`
    /// is 0), whether that was all and the run is over, and log-probabilities if the run's `logprobs` asks for them, else "": base64 of
    /// token ids as little-endian u32, then of as many f32. Each token taken has 1 + `logprobs` of them: its own, then those of the most
    /// probable tokens in order. A stop token is the last one. Suspends until there are some, or the run is
    /// over. The future is done whenever this would not suspend; it is gone when the run is over and all of it taken.
    pub fn take_run(run: u32, detokenizer: u32) -> Result<(Vec<u32>, Vec<String>, bool, String), Error> {
        #[link(wasm_import_module = "pie:inferlet/fused@0.3.0")]
        extern "C" {
            #[link_name = "take-run"]
            fn import(_: u32, _: u32, _: *mut u8);
        }
        unsafe { call(|result| import(run, detokenizer, result)) }
    }

    /// Follows the text of a run without waking the program: the future is done at the end only, and `take-run` then gives all tokens with
    /// the texts that they completed, whatever detokenizer it is given. `options` is a JSON object, or "". A key that is not listed here is
    /// refused.
    ///
    /// - `stop`: strings that end the run; the token that completes one is its last. At most 16 of 1024 characters in all.
    /// - `send`: whether the text goes to the client as it comes; a stop string and what comes after it, and a stop token, do not. What may
    ///   be the beginning of a stop string waits until that is certain. If the client is slow, the text waits; the run goes on, and the
    ///   future is done when all of the text is on its way.
    /// - `frame`: two texts; each piece of the text is sent between them, escaped as the inside of a JSON string: with `{"text":"` and `"}`
    ///   every message is JSON. They may have half as many bytes as a message.
    /// - `held`: the end of the text before the run, which may be the beginning of a stop string and was not sent.
    /// - `more`: whether another run goes on with the text: if this one ends after its `steps`, what waits is not sent, but `held` there.
    pub fn watch_run(run: u32, detokenizer: u32, options: &str) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/fused@0.3.0")]
        extern "C" {
            #[link_name = "watch-run"]
            fn import(_: u32, _: u32, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("watch-run", &[options.len()])?;
        unsafe { call(|result| import(run, detokenizer, options.as_ptr().cast(), options.len(), result)) }
    }

    /// Checks a draft, for speculative decoding. `embeds` are the outputs at the last token and at each draft token, one more than
    /// there are draft tokens. Each is sampled as `sample` would, and draft tokens are accepted up to the first that differs: exactly
    /// the tokens that sampling step by step gives. Samplers with penalties are refused. The future is for `await-verified`.
    pub fn verify(queue: u32, embeds: &[u32], draft: &[u32], sampler: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/fused@0.3.0")]
        extern "C" {
            #[link_name = "verify"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: u32, _: *mut u8);
        }
        crate::abi::check_size("verify", &[crate::abi::size_of(embeds), crate::abi::size_of(draft)])?;
        unsafe { call(|result| import(queue, embeds.as_ptr().cast(), embeds.len(), draft.as_ptr().cast(), draft.len(), sampler, result)) }
    }

    /// The number of accepted draft tokens, and the token after them.
    pub fn await_verified(future: u32) -> Result<(u32, u32), Error> {
        #[link(wasm_import_module = "pie:inferlet/fused@0.3.0")]
        extern "C" {
            #[link_name = "await-verified"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(future, result)) }
    }
}

pub mod grammar {
    use crate::abi::{call, Error};

    /// A matcher of a grammar for the model of the queue; the future is for `await-matcher`. The grammar is compiled, unless it was before
    /// for any inferlet of the host. `kind` is `json-schema` (the text is the schema),
    /// `regex` (all of the text matches; no look-around, no references back) or `lark` (a grammar in the syntax of Lark, with the
    /// additions of llguidance). At most 64 * 1024 characters. A grammar that is wrong, or takes too long, fails the future with
    /// `invalid-argument`, which says where and why. `options` is a JSON object, or "". A key that is not listed here is refused.
    ///
    /// - `whitespace`: whether JSON texts may have any whitespace between their parts; default: as Python's `json.dumps` writes it.
    pub fn open_matcher(queue: u32, kind: &str, text: &str, options: &str) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/grammar@0.3.0")]
        extern "C" {
            #[link_name = "open-matcher"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("open-matcher", &[kind.len(), text.len(), options.len()])?;
        unsafe { call(|result| import(queue, kind.as_ptr().cast(), kind.len(), text.as_ptr().cast(), text.len(), options.as_ptr().cast(), options.len(), result)) }
    }

    /// A matcher at the beginning, which will stand behind the tokens that it accepts; and whether there is something for `advance-matcher`
    /// to do before a run begins: nothing can follow but a stop token, or tokens are forced that usually pay to be run together. The
    /// matchers of an inferlet have at most 256 grammars.
    pub fn await_matcher(future: u32) -> Result<(u32, bool), Error> {
        #[link(wasm_import_module = "pie:inferlet/grammar@0.3.0")]
        extern "C" {
            #[link_name = "await-matcher"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(future, result)) }
    }

    /// One that has accepted the same tokens, and goes on by itself.
    pub fn fork_matcher(matcher: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/grammar@0.3.0")]
        extern "C" {
            #[link_name = "fork-matcher"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(matcher, result)) }
    }

    /// Accepts tokens, in order, up to the first that may not come. If it accepts all, and `skip` tokens or more are forced behind them (0:
    /// none count; 1: 10 or more, as with `decode`), it accepts these as well, but `most` at most. How many of `tokens` it has accepted; the
    /// forced ones that it has accepted, and the text that each completes in the detokenizer (0: no texts); and whether nothing can follow
    /// but a stop token.
    pub fn advance_matcher(matcher: u32, detokenizer: u32, tokens: &[u32], skip: u32, most: u32) -> Result<(u32, Vec<u32>, Vec<String>, bool), Error> {
        #[link(wasm_import_module = "pie:inferlet/grammar@0.3.0")]
        extern "C" {
            #[link_name = "advance-matcher"]
            fn import(_: u32, _: u32, _: *const u8, _: usize, _: u32, _: u32, _: *mut u8);
        }
        crate::abi::check_size("advance-matcher", &[crate::abi::size_of(tokens)])?;
        unsafe { call(|result| import(matcher, detokenizer, tokens.as_ptr().cast(), tokens.len(), skip, most, result)) }
    }

    /// The tokens that may come next: base64 of bytes, lowest bit first, as `sample` and `decode` take it.
    pub fn grammar_mask(matcher: u32) -> Result<String, Error> {
        #[link(wasm_import_module = "pie:inferlet/grammar@0.3.0")]
        extern "C" {
            #[link_name = "grammar-mask"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(matcher, result)) }
    }

    /// Takes back the last `count` tokens.
    pub fn grammar_rollback(matcher: u32, count: u32) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/grammar@0.3.0")]
        extern "C" {
            #[link_name = "grammar-rollback"]
            fn import(_: u32, _: u32, _: *mut u8);
        }
        unsafe { call(|result| import(matcher, count, result)) }
    }

    /// Tokens that come next, because there is no choice; empty where there is one. They are as the tokenizer writes their text.
    pub fn grammar_forced(matcher: u32) -> Result<Vec<u32>, Error> {
        #[link(wasm_import_module = "pie:inferlet/grammar@0.3.0")]
        extern "C" {
            #[link_name = "grammar-forced"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(matcher, result)) }
    }

    /// A JSON object: `accepting` (the text may end here), `over` (nothing can follow but a stop token), `tokens` (how many it has
    /// accepted). More keys may come.
    pub fn grammar_state(matcher: u32) -> Result<String, Error> {
        #[link(wasm_import_module = "pie:inferlet/grammar@0.3.0")]
        extern "C" {
            #[link_name = "grammar-state"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(matcher, result)) }
    }
}

pub mod http {
    use crate::abi::{call, Error};

    /// Sends a request; the future is for `await-response`. `headers` is a JSON list of pairs of name and value, or "". Headers that say how
    /// a request is sent (`Host`, `Content-Length`, `Connection` and so on) are set here and refused. `body` is base64, or "". `options` is a
    /// JSON object, or ""; a key that is not listed here is refused.
    ///
    /// - `blob`: the handle of a blob that is sent as the body, in place of `body`.
    /// - `timeout`: seconds for all of it, until the body of the response is read; default and most: a setting of the server.
    /// - `redirects`: how many to follow, 10 at most; default 5. What is not followed is a response like any other. Only the headers
    ///   `Accept`, `Accept-Language`, `Content-Type` and `User-Agent` go along to another server.
    ///
    /// Codes: `unsupported` (the server makes no requests), `not-allowed`, `quota-exceeded` (too many at a time), `exhausted` (of all
    /// inferlets). The future fails with `not-allowed`, `request-failed` or `timed-out`. `cancel` ends the request and closes its connection.
    pub fn http_request(method: &str, url: &str, headers: &str, body: &str, options: &str) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/http@0.3.0")]
        extern "C" {
            #[link_name = "http-request"]
            fn import(_: *const u8, _: usize, _: *const u8, _: usize, _: *const u8, _: usize, _: *const u8, _: usize, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("http-request", &[method.len(), url.len(), headers.len(), body.len(), options.len()])?;
        unsafe { call(|result| import(method.as_ptr().cast(), method.len(), url.as_ptr().cast(), url.len(), headers.as_ptr().cast(), headers.len(), body.as_ptr().cast(), body.len(), options.as_ptr().cast(), options.len(), result)) }
    }

    /// A handle of the response's body, and a JSON object: `status`, `url` (after redirects), `headers` (pairs of name, in lower case, and
    /// value). Later versions may add keys.
    pub fn await_response(future: u32) -> Result<(u32, String), Error> {
        #[link(wasm_import_module = "pie:inferlet/http@0.3.0")]
        extern "C" {
            #[link_name = "await-response"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(future, result)) }
    }

    /// A future of the next bytes of a body, at most `most` and at most 262144, for `await-text`: base64, "" at the end. One read of a body
    /// at a time. A body in gzip is unpacked. What is beyond the server's bound for a response fails with `request-failed`.
    pub fn read_body(body: u32, most: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/http@0.3.0")]
        extern "C" {
            #[link_name = "read-body"]
            fn import(_: u32, _: u32, _: *mut u8);
        }
        unsafe { call(|result| import(body, most, result)) }
    }

    /// A future of the handle of a blob (interface `blobs`) with the rest of a body, for `await-number`. The rest does not pass through the
    /// program. The handle of the body is gone. Fails as `read-body`, and with `quota-exceeded` if the bytes do not fit beside what the
    /// inferlet holds of blobs and images.
    pub fn keep_body(body: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/http@0.3.0")]
        extern "C" {
            #[link_name = "keep-body"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(body, result)) }
    }
}

pub mod input_image {
    use crate::abi::{call, Error};

    /// Embeds that an image of this size in pixels needs at the model of a queue, without the text around them.
    pub fn num_embs_needed(queue: u32, width: u32, height: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/input-image@0.3.0")]
        extern "C" {
            #[link_name = "num-embs-needed"]
            fn import(_: u32, _: u32, _: u32, _: *mut u8);
        }
        unsafe { call(|result| import(queue, width, height, result)) }
    }

    /// Decodes a blob (PNG or JPEG) and prepares it for the model of a queue. The future is for `await-image`; it fails with
    /// `invalid-argument` if the blob is no such image, is broken or too large.
    pub fn load_image(queue: u32, blob: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/input-image@0.3.0")]
        extern "C" {
            #[link_name = "load-image"]
            fn import(_: u32, _: u32, _: *mut u8);
        }
        unsafe { call(|result| import(queue, blob, result)) }
    }

    /// A handle of the image, and the tokens that stand for it in a prompt: the text that the model wants around images, and a placeholder
    /// token (`image_token` of `get-model-info`) for each embed.
    pub fn await_image(future: u32) -> Result<(u32, Vec<u32>), Error> {
        #[link(wasm_import_module = "pie:inferlet/input-image@0.3.0")]
        extern "C" {
            #[link_name = "await-image"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(future, result)) }
    }

    /// Fills embeds from what the model sees in an image, from its embed `first` on, at positions (as many positions as embeds). A large
    /// image takes several waves.
    pub fn embed_img(queue: u32, image: u32, first: u32, positions: &[u32], embeds: &[u32]) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/input-image@0.3.0")]
        extern "C" {
            #[link_name = "embed-img"]
            fn import(_: u32, _: u32, _: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("embed-img", &[crate::abi::size_of(positions), crate::abi::size_of(embeds)])?;
        unsafe { call(|result| import(queue, image, first, positions.as_ptr().cast(), positions.len(), embeds.as_ptr().cast(), embeds.len(), result)) }
    }
}

pub mod input_text {
    use crate::abi::{call, Error};

    /// Fills embeds from tokens at positions (three lists with the same number of items; embeds as ranges). A token with the
    /// highest bit set (0x8000_0000 + future) is a token reference: it names the token that an earlier `sample` of the same queue
    /// will give, before its value is known (paper, section 7.4).
    pub fn embed_txt(queue: u32, tokens: &[u32], positions: &[u32], embeds: &[u32]) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/input-text@0.3.0")]
        extern "C" {
            #[link_name = "embed-txt"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("embed-txt", &[crate::abi::size_of(tokens), crate::abi::size_of(positions), crate::abi::size_of(embeds)])?;
        unsafe { call(|result| import(queue, tokens.as_ptr().cast(), tokens.len(), positions.as_ptr().cast(), positions.len(), embeds.as_ptr().cast(), embeds.len(), result)) }
    }
}

pub mod output_text {
    use crate::abi::{call, Error};

    /// A future of the next-token distributions at output embeds, at most as many as one batch of the worker has rows (256 by default), for
    /// `await-dists`. Logits are divided by `temperature` (above 0; 1 leaves them unchanged), then each distribution is cut to the `k` most
    /// probable tokens (0: 256).
    pub fn get_next_dist(queue: u32, embeds: &[u32], k: u32, temperature: f32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/output-text@0.3.0")]
        extern "C" {
            #[link_name = "get-next-dist"]
            fn import(_: u32, _: *const u8, _: usize, _: u32, _: f32, _: *mut u8);
        }
        crate::abi::check_size("get-next-dist", &[crate::abi::size_of(embeds)])?;
        unsafe { call(|result| import(queue, embeds.as_ptr().cast(), embeds.len(), k, temperature, result)) }
    }

    /// Token ids and probabilities, most probable first, one embed behind the other and as many for each: base64 of little-endian u32 and
    /// of f32, since a list costs some guests much for each number. Then the probability mass left out of each.
    pub fn await_dists(future: u32) -> Result<(String, String, Vec<f32>), Error> {
        #[link(wasm_import_module = "pie:inferlet/output-text@0.3.0")]
        extern "C" {
            #[link_name = "await-dists"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(future, result)) }
    }

    /// A future of the log-probabilities of given tokens at output embeds, for `await-floats`: as many tokens for each embed, those of the
    /// first embed first. At most as many embeds as in `get-next-dist`.
    pub fn get_logprobs(queue: u32, embeds: &[u32], tokens: &[u32]) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/output-text@0.3.0")]
        extern "C" {
            #[link_name = "get-logprobs"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("get-logprobs", &[crate::abi::size_of(embeds), crate::abi::size_of(tokens)])?;
        unsafe { call(|result| import(queue, embeds.as_ptr().cast(), embeds.len(), tokens.as_ptr().cast(), tokens.len(), result)) }
    }
}

pub mod state {
    use crate::abi::{call, Error};

    /// Keeps the state at the end of a text: `context` are the pages with all of its tokens, as in `forward`. Commands that run it may
    /// still wait. The state stays until a token that it has read is cut off or written over, or its page is given back. It counts as
    /// `state_pages` pages, as each state does.
    pub fn keep_state(queue: u32, context: &[u32]) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/state@0.3.0")]
        extern "C" {
            #[link_name = "keep-state"]
            fn import(_: u32, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("keep-state", &[crate::abi::size_of(context)])?;
        unsafe { call(|result| import(queue, context.as_ptr().cast(), context.len(), result)) }
    }

    /// Runs tokens of which some may not stay, as those of a draft: a `forward` of at most 64 inputs that are filled, which leaves a state
    /// behind each of them, as far as there is memory (at models that run texts one by one, behind the last one alone). The state that it
    /// begins with stays. Which tokens have one is known with the answer of what reads the outputs: `find-state`. When a forward goes
    /// on from one of all these, the others are given back, but for those that are kept. `adapter` as in `forward`.
    pub fn forward_draft(queue: u32, context: &[u32], input_embeds: &[u32], output_pages: &[u32], output_embeds: &[u32], adapter: &str) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/state@0.3.0")]
        extern "C" {
            #[link_name = "forward-draft"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: *const u8, _: usize, _: *const u8, _: usize, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("forward-draft", &[crate::abi::size_of(context), crate::abi::size_of(input_embeds), crate::abi::size_of(output_pages), crate::abi::size_of(output_embeds), adapter.len()])?;
        unsafe { call(|result| import(queue, context.as_ptr().cast(), context.len(), input_embeds.as_ptr().cast(), input_embeds.len(), output_pages.as_ptr().cast(), output_pages.len(), output_embeds.as_ptr().cast(), output_embeds.len(), adapter.as_ptr().cast(), adapter.len(), result)) }
    }

    /// The last place of a text, up to behind its first `length` tokens, from which a forward may go on: how many tokens are before it, 0 if
    /// there is none. `context` are the pages with all of its tokens.
    pub fn find_state(queue: u32, context: &[u32], length: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/state@0.3.0")]
        extern "C" {
            #[link_name = "find-state"]
            fn import(_: u32, _: *const u8, _: usize, _: u32, _: *mut u8);
        }
        crate::abi::check_size("find-state", &[crate::abi::size_of(context)])?;
        unsafe { call(|result| import(queue, context.as_ptr().cast(), context.len(), length, result)) }
    }

    /// Gives the state behind the first `length` tokens of a text back, kept or not: nothing goes on from there any more.
    pub fn drop_state(queue: u32, context: &[u32], length: u32) -> Result<(), Error> {
        #[link(wasm_import_module = "pie:inferlet/state@0.3.0")]
        extern "C" {
            #[link_name = "drop-state"]
            fn import(_: u32, _: *const u8, _: usize, _: u32, _: *mut u8);
        }
        crate::abi::check_size("drop-state", &[crate::abi::size_of(context)])?;
        unsafe { call(|result| import(queue, context.as_ptr().cast(), context.len(), length, result)) }
    }
}

pub mod tokenize {
    use crate::abi::{call, Error};

    /// Token ids of a text; none are added. `special-tokens`: whether special tokens in the text (from `format-chat`, for instance)
    /// are recognized; without it the whole text is plain.
    pub fn tokenize(queue: u32, text: &str, special_tokens: bool) -> Result<Vec<u32>, Error> {
        #[link(wasm_import_module = "pie:inferlet/tokenize@0.3.0")]
        extern "C" {
            #[link_name = "tokenize"]
            fn import(_: u32, _: *const u8, _: usize, _: u32, _: *mut u8);
        }
        crate::abi::check_size("tokenize", &[text.len()])?;
        unsafe { call(|result| import(queue, text.as_ptr().cast(), text.len(), u32::from(special_tokens), result)) }
    }

    /// Text of the tokens; bytes that are not valid UTF-8 become U+FFFD. Special tokens are left out.
    pub fn detokenize(queue: u32, tokens: &[u32]) -> Result<String, Error> {
        #[link(wasm_import_module = "pie:inferlet/tokenize@0.3.0")]
        extern "C" {
            #[link_name = "detokenize"]
            fn import(_: u32, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("detokenize", &[crate::abi::size_of(tokens)])?;
        unsafe { call(|result| import(queue, tokens.as_ptr().cast(), tokens.len(), result)) }
    }

    /// A detokenizer keeps the bytes of an unfinished character until the rest arrives.
    pub fn create_detokenizer(queue: u32) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/tokenize@0.3.0")]
        extern "C" {
            #[link_name = "create-detokenizer"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(queue, result)) }
    }

    /// Adds tokens; returns the text that they complete. Never half a character.
    pub fn push_tokens(detokenizer: u32, tokens: &[u32]) -> Result<String, Error> {
        #[link(wasm_import_module = "pie:inferlet/tokenize@0.3.0")]
        extern "C" {
            #[link_name = "push-tokens"]
            fn import(_: u32, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("push-tokens", &[crate::abi::size_of(tokens)])?;
        unsafe { call(|result| import(detokenizer, tokens.as_ptr().cast(), tokens.len(), result)) }
    }

    /// The bytes of every token: base64, one line per token id.
    pub fn get_vocabs(queue: u32) -> Result<String, Error> {
        #[link(wasm_import_module = "pie:inferlet/tokenize@0.3.0")]
        extern "C" {
            #[link_name = "get-vocabs"]
            fn import(_: u32, _: *mut u8);
        }
        unsafe { call(|result| import(queue, result)) }
    }

    /// Renders the model's chat template. `messages`: JSON list of {"role", "content"}, or an object that has it as "messages",
    /// and further variables of the template as "variables"; `tools`: JSON list or "".
    pub fn format_chat(queue: u32, messages: &str, tools: &str, add_generation_prompt: bool) -> Result<String, Error> {
        #[link(wasm_import_module = "pie:inferlet/tokenize@0.3.0")]
        extern "C" {
            #[link_name = "format-chat"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: u32, _: *mut u8);
        }
        crate::abi::check_size("format-chat", &[messages.len(), tools.len()])?;
        unsafe { call(|result| import(queue, messages.as_ptr().cast(), messages.len(), tools.as_ptr().cast(), tools.len(), u32::from(add_generation_prompt), result)) }
    }

    /// Token ids of a conversation in the form of the model's chat template; text of messages is never read as special tokens.
    pub fn tokenize_chat(queue: u32, messages: &str, tools: &str, add_generation_prompt: bool) -> Result<Vec<u32>, Error> {
        #[link(wasm_import_module = "pie:inferlet/tokenize@0.3.0")]
        extern "C" {
            #[link_name = "tokenize-chat"]
            fn import(_: u32, _: *const u8, _: usize, _: *const u8, _: usize, _: u32, _: *mut u8);
        }
        crate::abi::check_size("tokenize-chat", &[messages.len(), tools.len()])?;
        unsafe { call(|result| import(queue, messages.as_ptr().cast(), messages.len(), tools.as_ptr().cast(), tools.len(), u32::from(add_generation_prompt), result)) }
    }
}

pub mod topics {
    use crate::abi::{call, Error};

    /// Sends a message to all inferlets that have subscribed to a topic, itself included. Those of one inferlet keep their order, and all
    /// subscribers get those of a topic in the same order. A name has 1 to 256 bytes, a message 256 KiB at most. The future is for
    /// `await-number`: how many inferlets it went to. It is done when every subscriber has the message in its queue, and room for more. To
    /// cancel it changes nothing else.
    /// With more than 256 KiB under way, `quota-exceeded`: await earlier futures first.
    pub fn broadcast(topic: &str, message: &str) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/topics@0.3.0")]
        extern "C" {
            #[link_name = "broadcast"]
            fn import(_: *const u8, _: usize, _: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("broadcast", &[topic.len(), message.len()])?;
        unsafe { call(|result| import(topic.as_ptr().cast(), topic.len(), message.as_ptr().cast(), message.len(), result)) }
    }

    /// A queue of what comes to a topic from now on; it is kept until it is taken. What the inferlet says to anybody after this call, it says
    /// as a subscriber: who acts on it will reach this queue. While 1 MiB waits in it, publishers wait. 64 for one inferlet.
    pub fn subscribe(topic: &str) -> Result<u32, Error> {
        #[link(wasm_import_module = "pie:inferlet/topics@0.3.0")]
        extern "C" {
            #[link_name = "subscribe"]
            fn import(_: *const u8, _: usize, _: *mut u8);
        }
        crate::abi::check_size("subscribe", &[topic.len()])?;
        unsafe { call(|result| import(topic.as_ptr().cast(), topic.len(), result)) }
    }
}
