/* An environment with a tool: how much is the sum of two numbers? The tool "add" says it; a response without a call is the answer.
 *
 *     cc -std=c99 -shared -fPIC -I plugins/sdk -o libsums.so sums.c
 *
 * Tools need version 1.6 of the border. An episode is cut after 4 steps. It takes no config key. */
#define NESTOR_LEAST_MINOR 6
#include "nestor_helpers.h"

enum { TASKS = 100, MAX_STEPS = 4 };

static const char tool[] =
    "{\"type\": \"function\", \"function\": {\"name\": \"add\", \"description\": \"Adds two whole numbers.\", \"parameters\": "
    "{\"type\": \"object\", \"required\": [\"a\", \"b\"], \"properties\": "
    "{\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"integer\"}}}}}";

typedef struct sum {
    int a, b, steps;
} sum;

static int32_t open_world(nestor_str config, nestor_sink *sink, void **world) {
    static int nothing; /* the episodes share nothing, but a handle must not be null */
    *world = &nothing;
    return nestor_no_config(config, sink);
}

static int32_t prompt_template(void *world, nestor_sink *sink) {
    (void)world;
    return nestor_put(sink, NESTOR_TEMPLATE, "{{ observation }}");
}

static int32_t tasks(void *world, nestor_str split, nestor_sink *sink, uint64_t *count) {
    (void)world;
    *count = nestor_is(split, "train") || nestor_is(split, "eval") ? TASKS : 0;
    return *count ? NESTOR_OK : nestor_fail(sink, NESTOR_INPUT, "the split is unknown; known: train, eval");
}

static int32_t spawn(void *world, nestor_sink *sink, void **env) {
    (void)world;
    *env = calloc(1, sizeof(sum));
    return *env ? NESTOR_OK : nestor_fail(sink, NESTOR_FAILED, "out of memory");
}

/* The second number is odd in the tasks of split train, and even in those of eval. */
static int32_t reset(void *env, nestor_str split, uint64_t task, uint64_t seed, nestor_sink *sink, nestor_step *out) {
    sum *s = env;
    (void)seed;
    if (task >= TASKS) return nestor_fail(sink, NESTOR_FAILED, "there is no such task");
    s->a = 10 + (int)task;
    s->b = 2 * (int)task + !nestor_is(split, "eval");
    s->steps = 0;
    out->valid = 1;
    nestor_put(sink, NESTOR_TOOL, tool);
    nestor_putf(sink, NESTOR_ANCHOR, "%d+%d", s->a, s->b);
    return nestor_putf(sink, NESTOR_OBSERVATION, "How much is %d + %d? Use the tool, then answer with the number.", s->a, s->b);
}

/* The number after a key of a call's arguments, which are JSON within a text of JSON: {\"a\": 3, \"b\": 2}. A plugin with richer
 * arguments reads them with a JSON library. */
static int number(const char *message, const char *key, int *value) {
    const char *at = strstr(message, key);
    return at && sscanf(at + strlen(key), " : %d", value) == 1;
}

/* Answers the first call. */
static int32_t call(const sum *s, const char *message, nestor_sink *sink, nestor_step *out) {
    char result[16] = "no numbers";
    int a, b, valid = number(message, "\\\"a\\\"", &a) && number(message, "\\\"b\\\"", &b);
    const char *id = strstr(message, "\"id\":\"");
    int id_length = id ? (int)strcspn(id += 6, "\"") : 0;
    if (valid) snprintf(result, sizeof result, "%ld", (long)a + b);
    out->valid = (uint8_t)valid;
    out->truncated = s->steps >= MAX_STEPS;
    nestor_putf(sink, NESTOR_MESSAGE, "{\"role\": \"tool\", \"tool_call_id\": \"%.*s\", \"content\": \"%s\"}", id_length, id ? id : "", result);
    nestor_putf(sink, NESTOR_ANCHOR, "%d+%d says %s", s->a, s->b, result);
    return nestor_put(sink, NESTOR_OBSERVATION, result);
}

static int32_t respond(void *env, const nestor_response *response, nestor_sink *sink, nestor_step *out) {
    sum *s = env;
    char message[2048], answer[16];
    size_t length = response->message.len < sizeof message ? response->message.len : sizeof message - 1;
    int won;
    memcpy(message, response->message.data, length);
    message[length] = 0;
    s->steps++;
    out->valid = !response->broken_call;
    if (strstr(message, "\"tool_calls\"")) return call(s, message, sink, out);
    snprintf(answer, sizeof answer, "%d", s->a + s->b);
    won = strstr(message, answer) != 0;
    out->terminated = 1;
    out->reward = won;
    nestor_put(sink, NESTOR_INFO, won ? "{\"won\": true}" : "{\"won\": false}");
    return nestor_put(sink, NESTOR_OBSERVATION, "");
}

/* A response as text alone, as when a person plays, is an answer. */
static int32_t step(void *env, nestor_str text, nestor_sink *sink, nestor_step *out) {
    nestor_response response = {0};
    response.text = response.message = text;
    return respond(env, &response, sink, out);
}

static int32_t close_env(void *env, nestor_sink *sink) {
    (void)sink;
    free(env);
    return NESTOR_OK;
}

static int32_t close_world(void *world, nestor_sink *sink) {
    (void)world;
    (void)sink;
    return NESTOR_OK;
}

static const nestor_respond taken = {respond};
static const void *extension(nestor_str id) { return nestor_is(id, NESTOR_RESPOND) ? &taken : 0; }

static const nestor_environment table = {open_world, prompt_template, tasks,     spawn,
                                         reset,      step,            close_env, close_world};
NESTOR_PLUGIN_OF_ONE(NESTOR_ENVIRONMENT, "sums", "Add two numbers with a tool.", NESTOR_NO_KEYS, table, extension)
