/* A complete environment in C99: count from 0 to a target by saying "add" or "take".
 *
 *     cc -std=c99 -shared -fPIC -I plugins/sdk -o libcounts.so counts.c
 *
 * The targets are odd in split train and even in split eval; an episode is cut after 20 steps. It takes no config key. */
#include "nestor_plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 20 };

typedef struct counter {
    int at, target, steps;
} counter;

static nestor_str str(const char *text) {
    nestor_str out;
    out.data = (const uint8_t *)text;
    out.len = strlen(text);
    return out;
}

static void put(nestor_sink *sink, uint32_t field, const char *text) {
    sink->put(sink->context, field, str(text));
}

static int same(nestor_str text, const char *other) {
    return text.len == strlen(other) && memcmp(text.data, other, text.len) == 0;
}

static int32_t fail(nestor_sink *sink, int32_t code, const char *message) {
    put(sink, NESTOR_ERROR, message);
    return code;
}

/* There is nothing to share, but a handle must not be null. */
static int the_world;

static int32_t open_world(nestor_str config, nestor_sink *sink, void **world) {
    size_t i;
    for (i = 0; i < config.len; i++) {
        if (!strchr("{} \t\r\n", config.data[i])) {
            return fail(sink, NESTOR_INPUT, "this environment takes no config keys");
        }
    }
    *world = &the_world;
    return NESTOR_OK;
}

static int32_t prompt_template(void *world, nestor_sink *sink) {
    (void)world;
    put(sink, NESTOR_TEMPLATE, "{{ observation }} Say add or take.");
    return NESTOR_OK;
}

static uint64_t tasks_of(nestor_str split) { return same(split, "train") ? 5 : same(split, "eval") ? 4 : 0; }

static int32_t tasks(void *world, nestor_str split, nestor_sink *sink, uint64_t *count) {
    (void)world;
    *count = tasks_of(split);
    return *count ? NESTOR_OK : fail(sink, NESTOR_INPUT, "this environment has the splits train and eval");
}

static int32_t spawn(void *world, nestor_sink *sink, void **env) {
    (void)world;
    *env = calloc(1, sizeof(counter));
    return *env ? NESTOR_OK : fail(sink, NESTOR_FAILED, "out of memory");
}

static void observe(const counter *c, nestor_sink *sink, nestor_step *out) {
    char text[64];
    int won = c->at == c->target;
    sprintf(text, "The count is %d, make it %d.", c->at, c->target);
    put(sink, NESTOR_OBSERVATION, text);
    sprintf(text, "%d/%d", c->at, c->target);
    put(sink, NESTOR_ANCHOR, text);
    put(sink, NESTOR_ADMISSIBLE, "add");
    put(sink, NESTOR_ADMISSIBLE, "take");
    put(sink, NESTOR_INFO, won ? "{\"won\": true}" : "{\"won\": false}");
    out->reward = 0;
    out->valid = 1;
    out->terminated = (uint8_t)won;
    out->truncated = (uint8_t)(!won && c->steps >= MAX_STEPS);
}

static int32_t reset(void *env, nestor_str split, uint64_t task, uint64_t seed, nestor_sink *sink, nestor_step *out) {
    counter *c = env;
    (void)seed;
    if (task >= tasks_of(split)) {
        return fail(sink, NESTOR_FAILED, "the split has no such task");
    }
    c->at = 0;
    c->target = 2 * (int)task + (same(split, "train") ? 1 : 2);
    c->steps = 0;
    observe(c, sink, out);
    return NESTOR_OK;
}

static int32_t step(void *env, nestor_str response, nestor_sink *sink, nestor_step *out) {
    counter *c = env;
    int add = same(response, "add"), take = same(response, "take");
    c->at += add - take;
    c->steps++;
    observe(c, sink, out);
    put(sink, NESTOR_ACTION, add ? "add" : take ? "take" : "");
    out->valid = (uint8_t)(add || take);
    out->reward = out->terminated;
    return NESTOR_OK;
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

static const nestor_environment functions = {open_world, prompt_template, tasks,     spawn,
                                             reset,      step,            close_env, close_world};

static nestor_component component = {NESTOR_ENVIRONMENT, {0, 0}, {0, 0}, {0, 0}, &functions, 0};
static const nestor_plugin plugin = {NESTOR_HEAD, 1, &component};

const nestor_plugin *nestor_plugin_entry(void) {
    component.id = str("counts");
    component.doc = str("Count from 0 to a target.");
    component.config_schema = str("{\"type\": \"object\", \"properties\": {}, \"additionalProperties\": false}");
    return &plugin;
}
