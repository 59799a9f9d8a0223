/* A = S - m, where S is the score of a row (the sum of its token rewards) and m the mean over the rows of its group. */
#include <stdlib.h>

#include "nestor_helpers.h"

static int32_t open_estimator(nestor_str config, nestor_sink *sink, void **estimator) {
    static int nothing; /* there is nothing to remember, but a handle must not be null */
    *estimator = &nothing;
    return nestor_no_config(config, sink);
}
static int32_t needs(void *estimator, nestor_sink *sink, uint32_t *flags) {
    *flags = 0; /* neither a critic's values nor anchors nor reference log-probs */
    return NESTOR_OK;
}
static double score_of(const nestor_rows *rows, uint64_t row) {
    double sum = 0;
    for (uint64_t t = rows->token_offsets[row]; t < rows->token_offsets[row + 1]; t++) sum += rows->token_rewards[t];
    return sum;
}
static int32_t score(void *estimator, const nestor_rows *rows, nestor_sink *sink, float *advantages, float *returns) {
    uint64_t groups = 0;
    for (uint64_t i = 0; i < rows->rows; i++) groups = rows->group[i] < groups ? groups : rows->group[i] + 1;
    struct { double sum, count; } *of = calloc(groups + 1, sizeof *of);
    if (!of) return nestor_fail(sink, NESTOR_FAILED, "out of memory");
    for (uint64_t i = 0; i < rows->rows; i++) {
        of[rows->group[i]].sum += score_of(rows, i);
        of[rows->group[i]].count++;
    }
    for (uint64_t i = 0; i < rows->rows; i++) {
        double advantage = score_of(rows, i) - of[rows->group[i]].sum / of[rows->group[i]].count;
        for (uint64_t t = rows->token_offsets[i]; t < rows->token_offsets[i + 1]; t++) {
            advantages[t] = returns[t] = (float)advantage; /* the same number for every token of a row */
        }
    }
    free(of);
    return NESTOR_OK;
}
static int32_t close_estimator(void *estimator, nestor_sink *sink) { return NESTOR_OK; }

static const nestor_estimator table = {open_estimator, needs, score, close_estimator};
NESTOR_PLUGIN_OF_ONE(NESTOR_ESTIMATOR, "my_plugin", "Row score less the mean of its group.", NESTOR_NO_KEYS, table, 0)
