/* PPO's clipped ratio: max(-A r, -A clip(r, 0.8, 1.2)), where r is the ratio of a token's probability to the old one, and A its
 * advantage. */
#define NESTOR_LEAST_MINOR 5 /* the first version of the border that has losses */
#include <math.h>

#include "nestor_helpers.h"

static int32_t open_loss(nestor_str config, nestor_sink *sink, void **loss) {
    static int nothing; /* there is nothing to remember, but a handle must not be null */
    *loss = &nothing;
    return nestor_no_config(config, sink);
}
static int32_t needs(void *loss, nestor_sink *sink, uint32_t *flags) {
    *flags = 0; /* neither reference log-probs nor a derivative by the entropy */
    return NESTOR_OK;
}
static int32_t compute(void *loss, const nestor_tokens *tokens, nestor_sink *sink, double *losses, double *by_logprob,
                       double *by_entropy) {
    double clipped = 0;
    for (uint64_t t = 0; t < tokens->tokens; t++) {
        double a = tokens->advantages[t], r = exp((double)tokens->logprobs[t] - tokens->old_logprobs[t]);
        double bounded = r < 0.8 ? 0.8 : r > 1.2 ? 1.2 : r;
        int is_clipped = -a * bounded > -a * r;
        losses[t] = is_clipped ? -a * bounded : -a * r;
        by_logprob[t] = is_clipped ? 0 : -a * r; /* the derivative of r by the token's log-prob is r */
        clipped += is_clipped;
    }
    /* A sum; metrics.jsonl gets the mean over the update's tokens as loss/clip_fraction. */
    return nestor_putf(sink, NESTOR_METRICS, "{\"clip_fraction\": %.17g}", clipped);
}
static int32_t close_loss(void *loss, nestor_sink *sink) { return NESTOR_OK; }

static const nestor_loss table = {open_loss, needs, compute, close_loss};
NESTOR_PLUGIN_OF_ONE(NESTOR_LOSS, "my_plugin", "PPO's clipped ratio.", NESTOR_NO_KEYS, table, 0)
