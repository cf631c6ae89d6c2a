/* A guest in C: writes 60 tokens greedily, call by call, as examples/inferlets/raw_api does. */

typedef unsigned int u32;
typedef struct { const void *items; u32 count; } list; /* and string */
#define LIST(name) const void *name, u32 name##_count
typedef struct { u32 is_error, value[4]; } result; /* of all calls here: the value begins at 4, or code and message */

#define CALL(interface, name) __attribute__((import_module("pie:inferlet/" interface "@0.3.0"), import_name(name))) extern

CALL("core", "available-models") void available_models(list *models);
CALL("core", "get-model-info") void get_model_info(LIST(model), result *json);
CALL("core", "create-queue") void create_queue(LIST(model), result *queue);
CALL("core", "send") void send(u32 to, LIST(message), result *future);
CALL("core", "await-number") void await_number(u32 future, result *number);
CALL("tokenize", "tokenize-chat") void tokenize_chat(u32 queue, LIST(messages), LIST(tools), u32 prompt, result *tokens);
CALL("tokenize", "create-detokenizer") void create_detokenizer(u32 queue, result *detokenizer);
CALL("allocate", "alloc") void alloc(u32 queue, u32 kind, u32 count, result *first);
CALL("fused", "create-sampler") void create_sampler(LIST(config), result *sampler);
CALL("fused", "take-text") void take_text(u32 future, u32 detokenizer, result *token);
CALL("forward", "forward") void forward(const void *arguments, result *future); /* more than 16 are in memory */

static const char MESSAGES[] = "[{\"role\": \"user\", \"content\": \"Write three facts about bees.\"}]";
static const char GREEDY[] = "{\"temperature\": 0}";
enum { MOST_TOKENS = 60, PAGES = 16, MOST_PROMPT = 128 };

extern unsigned char __heap_base;
static u32 heap;

/* The host asks for room by this. Nothing is given back: the program is short. */
__attribute__((export_name("cabi_realloc"))) void *cabi_realloc(void *old, u32 old_size, u32 align, u32 size) {
    if (!heap) heap = (u32)&__heap_base;
    heap = (heap + align - 1) & -align;
    u32 begin = heap, bytes = __builtin_wasm_memory_size(0) << 16;
    heap += size;
    if (heap > bytes && __builtin_wasm_memory_grow(0, (heap - bytes + 65535) >> 16) == -1u) __builtin_trap();
    for (u32 i = 0; i < old_size; i++) ((char *)begin)[i] = ((char *)old)[i];
    return (void *)begin;
}

/* The first stop token that the JSON object of a model names. */
static u32 stop_token(const char *json, u32 size) {
    static const char KEY[] = "\"stop_tokens\":";
    u32 at = 0, matched = 0, token = 0;
    while (at < size && matched < sizeof KEY - 1) matched = json[at++] == KEY[matched] ? matched + 1 : 0;
    while (at < size && (json[at] < '0' || json[at] > '9')) at++;
    while (at < size && json[at] >= '0' && json[at] <= '9') token = 10 * token + (json[at++] - '0');
    return token;
}

static struct { u32 is_error; list message; } outcome; /* result<_, string> */
static u32 failed(result *call) {
    outcome.is_error = 1;
    outcome.message.items = (void *)call->value[2];
    outcome.message.count = call->value[3];
    return (u32)&outcome;
}
#define TRY(call) if (call, *(unsigned char *)&r.is_error) return failed(&r)

__attribute__((export_name("run"))) u32 run(void) {
    result r = {0};
    list none = {0}, models, prompt;
    available_models(&models);
    const list *model = models.items;
    TRY(get_model_info(model->items, model->count, &r));
    u32 stop = stop_token((void *)r.value[0], r.value[1]);
    TRY(create_queue(model->items, model->count, &r));
    u32 queue = r.value[0];
    TRY(tokenize_chat(queue, MESSAGES, sizeof MESSAGES - 1, 0, 0, 1, &r));
    prompt = (list){(void *)r.value[0], r.value[1]};
    TRY(create_detokenizer(queue, &r));
    u32 detokenizer = r.value[0];
    TRY(create_sampler(GREEDY, sizeof GREEDY - 1, &r));
    u32 sampler = r.value[0];
    TRY(alloc(queue, 0, PAGES, &r));
    u32 pages[2] = {r.value[0], PAGES};
    TRY(alloc(queue, 1, prompt.count, &r));
    u32 inputs[2] = {r.value[0], prompt.count};
    TRY(alloc(queue, 1, 1, &r));
    u32 output[2] = {r.value[0], 1};
    u32 positions[MOST_PROMPT], next = 0;
    if (prompt.count > MOST_PROMPT) __builtin_trap();
    for (u32 i = 0; i < prompt.count; i++) positions[i] = i;

    list tokens = prompt;
    for (u32 position = prompt.count; position < prompt.count + MOST_TOKENS; position++) {
        struct {
            u32 queue;
            list context, inputs, pages, outputs, tokens, positions, mask, adapter;
            u32 sampler, k;
            float temperature;
            u32 scores;
        } arguments = {queue, {pages, 2}, {inputs, 2}, {pages, 2}, {output, 2}, tokens, {positions, tokens.count}, none, none,
                       sampler, 0, 0, 0};
        TRY(forward(&arguments, &r));
        TRY(take_text(r.value[0], detokenizer, &r));
        next = r.value[0];
        if (next == stop) break;
        TRY(send(0, (void *)r.value[1], r.value[2], &r));
        if (r.value[0] & 1) TRY(await_number(r.value[1], &r)); /* the client reads slowly */
        tokens = (list){&next, 1};
        inputs[1] = 1;
        positions[0] = position;
    }
    return (u32)&outcome;
}
