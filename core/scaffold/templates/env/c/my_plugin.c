/* Walk over the cells 0 to 9 to a target by saying "up" or "down". */
#include <stdlib.h>

#include "nestor_helpers.h"

typedef struct walk { int at, target, steps; } walk;

static int32_t open_world(nestor_str config, nestor_sink *sink, void **world) {
    static int nothing; /* the episodes share nothing, but a handle must not be null */
    *world = &nothing;
    return nestor_no_config(config, sink);
}
static int32_t prompt_template(void *world, nestor_sink *sink) {
    return nestor_put(sink, NESTOR_TEMPLATE, "{{ observation }}");
}
static int32_t tasks(void *world, nestor_str split, nestor_sink *sink, uint64_t *count) {
    *count = nestor_is(split, "train") ? 50 : nestor_is(split, "eval") ? 40 : 0;
    return *count ? NESTOR_OK : nestor_fail(sink, NESTOR_INPUT, "the split is unknown; known: train, eval");
}
static int32_t spawn(void *world, nestor_sink *sink, void **env) {
    *env = calloc(1, sizeof(walk));
    return *env ? NESTOR_OK : nestor_fail(sink, NESTOR_FAILED, "out of memory");
}
static int32_t observe(const walk *w, nestor_sink *sink, nestor_step *out) {
    int won = w->at == w->target;
    nestor_putf(sink, NESTOR_OBSERVATION, "at %d, go %+d", w->at, w->target - w->at);
    nestor_putf(sink, NESTOR_ANCHOR, "%d/%d", w->at, w->target); /* equal where the state is equal: no step counter */
    nestor_put(sink, NESTOR_ADMISSIBLE, "up");
    nestor_put(sink, NESTOR_ADMISSIBLE, "down");
    *out = (nestor_step){.valid = 1, .terminated = won, .truncated = !won && w->steps >= 20};
    return nestor_put(sink, NESTOR_INFO, won ? "{\"won\": true}" : "{\"won\": false}");
}
/* The distance is odd in the tasks of split train, and even in those of eval. */
static int32_t reset(void *env, nestor_str split, uint64_t task, uint64_t seed, nestor_sink *sink, nestor_step *out) {
    walk *w = env;
    int eval = nestor_is(split, "eval"), each = eval ? 4 : 5, at = (int)task / each;
    if (task >= (eval ? 40 : 50)) return nestor_fail(sink, NESTOR_FAILED, "there is no such task");
    *w = (walk){.at = at, .target = (at + 1 + eval + 2 * ((int)task % each)) % 10};
    return observe(w, sink, out);
}
static int32_t step(void *env, nestor_str response, nestor_sink *sink, nestor_step *out) {
    walk *w = env;
    int up = nestor_is(response, "up"), down = nestor_is(response, "down");
    w->at += (up && w->at < 9) - (down && w->at > 0);
    w->steps++;
    observe(w, sink, out);
    out->valid = up || down;
    out->reward = out->terminated;
    return nestor_put(sink, NESTOR_ACTION, up ? "up" : down ? "down" : "");
}
static int32_t close_env(void *env, nestor_sink *sink) {
    free(env);
    return NESTOR_OK;
}
static int32_t close_world(void *world, nestor_sink *sink) { return NESTOR_OK; }

/* An expert is optional: a warm start imitates it. */
static int32_t next_action(void *env, nestor_sink *sink) {
    const walk *w = env;
    return nestor_put(sink, NESTOR_ACTION, w->target > w->at ? "up" : "down");
}
static int32_t response(void *env, nestor_str action, nestor_sink *sink) {
    sink->put(sink->context, NESTOR_RESPONSE, action); /* the whole response is the action */
    return NESTOR_OK;
}
static const nestor_expert expert = {next_action, response};
static const void *extension(nestor_str id) { return nestor_is(id, NESTOR_EXPERT) ? &expert : NULL; }

static const nestor_environment table = {open_world, prompt_template, tasks, spawn, reset, step, close_env, close_world};
NESTOR_PLUGIN_OF_ONE(NESTOR_ENVIRONMENT, "my_plugin", "Walk to a target.", NESTOR_NO_KEYS, table, extension)
