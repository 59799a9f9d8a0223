/* A complete estimator in C99 that asks for one column by name: A = W - m, where W is 1 in the rows of won episodes, else 0,
 * and m is the mean of W over the rows of the group.
 *
 *     cc -std=c99 -shared -fPIC -I plugins/sdk -o libmean.so mean.c
 *
 * It cannot work without columns, so it needs version 1.2 of the border. It takes no config key. */
#define NESTOR_LEAST_MINOR 2
#include "nestor_helpers.h"

#include <stdlib.h>

static int32_t open_estimator(nestor_str config, nestor_sink *sink, void **estimator) {
    static int nothing; /* there is nothing to remember, but a handle must not be null */
    *estimator = &nothing;
    return nestor_no_config(config, sink);
}

static int32_t needs(void *estimator, nestor_sink *sink, uint32_t *flags) {
    (void)estimator, (void)sink;
    *flags = 0;
    return NESTOR_OK;
}

static int32_t columns(void *estimator, nestor_sink *sink) {
    (void)estimator;
    return nestor_put(sink, NESTOR_COLUMN, "success");
}

static int32_t score_columns(void *estimator, const nestor_rows *rows, const nestor_column *column, nestor_sink *sink,
                             float *advantages, float *returns) {
    const uint8_t *won = column[0].data; /* [B]: the kind of the column `success` is NESTOR_U8 */
    uint64_t i, t, groups = 0;
    struct {
        double won, rows;
    } *of;
    (void)estimator;
    for (i = 0; i < rows->rows; i++) groups = rows->group[i] < groups ? groups : rows->group[i] + 1;
    of = calloc(groups + 1, sizeof *of);
    if (!of) return nestor_fail(sink, NESTOR_FAILED, "out of memory");
    for (i = 0; i < rows->rows; i++) {
        of[rows->group[i]].won += won[i];
        of[rows->group[i]].rows++;
    }
    for (i = 0; i < rows->rows; i++) {
        double advantage = won[i] - of[rows->group[i]].won / of[rows->group[i]].rows;
        for (t = rows->token_offsets[i]; t < rows->token_offsets[i + 1]; t++) advantages[t] = returns[t] = (float)advantage;
    }
    free(of);
    return NESTOR_OK;
}

/* A host that knows columns calls score_columns in its place. No table of functions has a null in it. */
static int32_t score(void *estimator, const nestor_rows *rows, nestor_sink *sink, float *advantages, float *returns) {
    (void)estimator, (void)rows, (void)advantages, (void)returns;
    return nestor_fail(sink, NESTOR_FAILED, "this estimator needs the extension " NESTOR_COLUMNS);
}

static int32_t close_estimator(void *estimator, nestor_sink *sink) {
    (void)estimator, (void)sink;
    return NESTOR_OK;
}

static const nestor_estimator table = {open_estimator, needs, score, close_estimator};
static const nestor_columns by_name = {columns, score_columns, 0};

static const void *extension(nestor_str id) {
    return nestor_is(id, NESTOR_COLUMNS) ? &by_name : NULL;
}

NESTOR_PLUGIN_OF_ONE(NESTOR_ESTIMATOR, "mean", "Success of a row's episode less the mean of its group.", NESTOR_NO_KEYS,
                     table, extension)
