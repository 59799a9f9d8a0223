/* nestor_plugin.h: the border between Nestor and its plugins, version 1.6. C99; this file is the source of truth.
 *
 * A plugin is a shared library that exports one function, nestor_plugin_entry. It returns a static description: which
 * border the plugin was built for and which components (environments, estimators, losses) it holds. The host checks magic,
 * version and struct sizes before it reads or calls anything else.
 *
 * Rules
 *  - No allocation crosses the border. Text comes in as (pointer, length), borrowed for the call; text goes out through
 *    the sink, which copies it before it returns; number arrays are allocated by the host.
 *  - Text is UTF-8 and not null-terminated. Anchors and images are bytes.
 *  - Every function of a table returns a code. With a code other than NESTOR_OK it puts one NESTOR_ERROR text first:
 *    what is wrong, where, and how to mend it, in lower case, without a full stop. The out-arguments are then ignored.
 *  - Nothing may unwind or longjmp across the border.
 *  - A handle that a plugin gives (world, env, estimator, loss) is not null.
 *  - Limits of one call: NESTOR_MOST_BYTES of text, NESTOR_MOST_TEXTS texts, NESTOR_MOST_IMAGES images of
 *    NESTOR_MOST_PIXELS pixels, and the seconds of the recipe's env.timeout_s. A call beyond them fails. A thread in a call
 *    that takes too long is left behind, with the env that it plays.
 *  - A plugin does not end the process. Standard output is the host's: what a plugin prints there goes to standard error.
 *  - What the description points at stays valid, and unchanged, as long as the library is loaded. It is never unloaded.
 *
 * Versions. The major number must be equal. A minor version adds sink fields, flags and extensions, and never changes a
 * struct. A plugin says the least minor version that it needs: 0, unless it cannot work without something newer. A host
 * accepts a plugin that needs its own minor version or an older one, and ignores sink fields and extensions that it does
 * not know. It refuses kinds that it does not know: a file with a loss needs 5. A host of version 1.2 shows no images: an environment that cannot be played without them defines
 * NESTOR_LEAST_MINOR as 3. */
#ifndef NESTOR_PLUGIN_H
#define NESTOR_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NESTOR_MAGIC UINT64_C(0x4e4553544f52504c) /* "NESTORPL" as a number */
#define NESTOR_ABI_MAJOR 1
#define NESTOR_ABI_MINOR 6
/* The least minor version that the plugin needs; define it before the header is included. */
#ifndef NESTOR_LEAST_MINOR
#define NESTOR_LEAST_MINOR 0
#endif

/* Codes. */
#define NESTOR_OK 0
#define NESTOR_FAILED 1 /* the run cannot go on */
#define NESTOR_INPUT 2  /* the user's input is wrong: a config key, a split, a data file */
#define NESTOR_PANIC 3  /* a fault in the plugin itself */

/* Limits of what one call puts. */
#define NESTOR_MOST_BYTES 4194304 /* 4 MiB, all texts together; NESTOR_STATE and NESTOR_IMAGE do not count */
#define NESTOR_MOST_TEXTS 65536
#define NESTOR_MOST_STATE 268435456 /* 256 MiB, one NESTOR_STATE */
#define NESTOR_MOST_IMAGES 64
#define NESTOR_MOST_PIXELS 16777216 /* 16 Mi, all images together */

/* Borrowed text or bytes; data may be null where len is 0. */
typedef struct nestor_str {
    const uint8_t *data;
    size_t len;
} nestor_str;

/* What a text put into the sink is. */
#define NESTOR_ERROR 1       /* the message that goes with a code other than NESTOR_OK */
#define NESTOR_OBSERVATION 2 /* what the policy is shown */
#define NESTOR_TASK 3        /* the task's text; may be left out */
#define NESTOR_ADMISSIBLE 4  /* one admissible action; put once per action, in the order to show */
#define NESTOR_ANCHOR 5      /* bytes: key of the state that the next step is taken in */
#define NESTOR_ACTION 6      /* the action that was read in the response; the expert's next action */
#define NESTOR_INFO 7        /* one JSON object: "won" (bool; without it an episode counts as lost), "task_type" (at most 128
                                bytes without slashes and control characters), and what else is worth recording: it is
                                written with the episode, and its numbers and bools can be columns (info.NAME) */
#define NESTOR_TEMPLATE 8    /* the default prompt template (Jinja) */
#define NESTOR_RESPONSE 9    /* a whole response of the policy that carries an action */
#define NESTOR_PART 10       /* since 1.1: the name of one column of parts; put once per column, in their order */
#define NESTOR_COLUMN 11     /* since 1.2: the name of one column that an estimator asks for; put once per column */
#define NESTOR_STATE 12      /* since 1.2: bytes that save puts and load or restore gets */
#define NESTOR_METRICS 13    /* since 1.2: one JSON object of numbers for metrics.jsonl, from step under env/, from score
                                under estimator/, from compute under loss/. Names: lower case letters, digits, underscores.
                                Of an environment the mean over episodes of the number put last in each is written; of a
                                loss the sum over an update's calls, divided by its response tokens */
#define NESTOR_LACKS 14      /* since 1.2: from open, the id of an extension that this world does not have although the
                                component does; put once per extension */
#define NESTOR_IMAGE 15      /* since 1.3: one image that the policy is shown with the observation; put once per image, in the
                                order to show. Bytes: width and height in pixels, each as uint32 little-endian and at least 1,
                                then 3 bytes of each pixel (red, green, blue), row by row from the top, each row from the
                                left. A prompt template shows them by {{ image }} */
#define NESTOR_MESSAGE 16    /* since 1.4: one message of the chat that the policy is shown as the observation; put once per
                                message, in their order. One JSON object: "role" (system, user, assistant or tool), "content"
                                (a text), and what else a chat template reads, such as "tool_calls". Only the first message
                                may be the system's, and the last one is the user's or a tool's. NESTOR_OBSERVATION is the
                                content of the last one: the prompt template writes that message alone */
#define NESTOR_TOOL 17       /* since 1.6: one tool that the policy may call; put once per tool, in the order to show. One JSON
                                object as OpenAI has it: {"type": "function", "function": {"name", "description",
                                "parameters"}}. The chat template describes them. They hold until a step puts others */
#define NESTOR_CONVERSATION 18 /* since 1.6: put, with any text, where the messages are the whole conversation so far, the
                                policy's own responses among them as NESTOR_RESPOND got them. The host continues the tokens
                                of the step whose conversation they extend, and no prompt template is used */

/* Where text goes. put copies the text; it may be called any number of times, only during the call that got the sink,
 * and only on its thread. A field put twice keeps the last text, but for NESTOR_ADMISSIBLE, NESTOR_PART,
 * NESTOR_COLUMN, NESTOR_LACKS, NESTOR_IMAGE, NESTOR_MESSAGE and NESTOR_TOOL, which collect. Fields that the host does not know are ignored. */
typedef struct nestor_sink {
    void *context;
    void (*put)(void *context, uint32_t field, nestor_str text);
} nestor_sink;

/* The numbers of a reset or step. Flags are 0 or 1, and an episode does not end in both ways. After reset the reward is 0,
 * valid is 1, and the episode is not over. */
typedef struct nestor_step {
    double reward;
    uint8_t terminated; /* the episode ended by the environment's own rules */
    uint8_t truncated;  /* the episode was cut by a limit of the environment */
    uint8_t valid;      /* the response had the right form */
} nestor_step;

/* An environment. A world holds what all episodes share (data, indices) and is used by many threads at once; an env
 * plays one episode at a time, on one thread at a time, and is used again after reset. Envs are closed before their
 * world is. The close functions are called exactly once, whatever happened before. */
typedef struct nestor_environment {
    /* config is a JSON object; unknown keys and wrong types are NESTOR_INPUT. May put NESTOR_LACKS. */
    int32_t (*open)(nestor_str config, nestor_sink *sink, void **world);
    /* Puts NESTOR_TEMPLATE, which is required. */
    int32_t (*prompt_template)(void *world, nestor_sink *sink);
    /* Number of tasks in a split; an unknown split is NESTOR_INPUT and the message names the known ones. */
    int32_t (*tasks)(void *world, nestor_str split, nestor_sink *sink, uint64_t *count);
    int32_t (*spawn)(void *world, nestor_sink *sink, void **env);
    /* Starts a task. The same split, task and seed give the same episode for the same responses. Puts
     * NESTOR_OBSERVATION and NESTOR_ANCHOR, which are required, and NESTOR_TASK, NESTOR_ADMISSIBLE, NESTOR_IMAGE, NESTOR_MESSAGE,
     * NESTOR_INFO and NESTOR_METRICS where there are any. Beside images the observation may be empty. The anchor of a state
     * that only an image shows can be a digest of it. Once the episode is over the anchor may be left out; put it all the
     * same where the state has one, since some estimators compare last states (column next_anchor). */
    int32_t (*reset)(void *env, nestor_str split, uint64_t task, uint64_t seed, nestor_sink *sink, nestor_step *out);
    /* Plays one response, raw as the policy wrote it. Puts the fields of reset, and NESTOR_ACTION. */
    int32_t (*step)(void *env, nestor_str response, nestor_sink *sink, nestor_step *out);
    int32_t (*close)(void *env, nestor_sink *sink);
    int32_t (*close_world)(void *world, nestor_sink *sink);
} nestor_environment;

/* Extension "nestor.env.expert/1": an expert that plays the environment; the warm start imitates it. */
#define NESTOR_EXPERT "nestor.env.expert/1"
typedef struct nestor_expert {
    /* Puts NESTOR_ACTION: what the expert does next in the current episode, one of the admissible actions where there is a
     * list of them. */
    int32_t (*next_action)(void *env, nestor_sink *sink);
    /* Puts NESTOR_RESPONSE: a whole, valid response that carries the action. */
    int32_t (*response)(void *env, nestor_str action, nestor_sink *sink);
} nestor_expert;

/* A copy of what later calls depend on, as bytes (NESTOR_STATE). Both functions are called between other calls. */
typedef struct nestor_state {
    int32_t (*save)(void *handle, nestor_sink *sink);                   /* puts NESTOR_STATE */
    int32_t (*load)(void *handle, nestor_str state, nestor_sink *sink); /* bytes that save put; others are an error */
} nestor_state;

/* Extension "nestor.env.snapshot/1", since 1.2: functions is a nestor_state. save copies the state of an env's episode, load
 * sets an env of the same world, this one or another, to it. It may be loaded any number of times; the same responses then
 * give the same steps. */
#define NESTOR_SNAPSHOT "nestor.env.snapshot/1"

/* A response, taken apart. */
typedef struct nestor_response {
    nestor_str text;       /* raw, as nestor_environment.step gets it */
    nestor_str message;    /* the message of the assistant as JSON: "role", "content", and "tool_calls" as OpenAI has them, where
                              tools are declared and the response calls some (<tool_call>{"name", "arguments"}</tool_call>) */
    uint8_t broken_call;   /* 1: the text holds a call that is cut or no JSON, and stays content */
    uint8_t cut;           /* 1: the response reached its limit of tokens */
    const uint32_t *prompt; /* [prompt_tokens] ids before the response, the whole conversation */
    uint64_t prompt_tokens;
    const uint32_t *tokens; /* [count] ids of the response, the end-of-sequence token included */
    const float *logprobs;  /* [count] as the policy sampled them */
    uint64_t count;
} nestor_response;

/* Extension "nestor.env.respond/1", since 1.6: steps that see more than the text. An environment that needs it defines
 * NESTOR_LEAST_MINOR as 6; for any other, hosts without it call step. */
#define NESTOR_RESPOND "nestor.env.respond/1"
typedef struct nestor_respond {
    /* In place of nestor_environment.step. */
    int32_t (*respond)(void *env, const nestor_response *response, nestor_sink *sink, nestor_step *out);
} nestor_respond;

/* What an estimator asks for, as flags. */
#define NESTOR_NEEDS_VALUES 1    /* values: the run keeps a critic */
#define NESTOR_NEEDS_ANCHORS 2   /* anchors */
#define NESTOR_NEEDS_REFERENCE 4 /* ref_logprobs: the run keeps a reference policy */

/* The steps of one iteration as columns. A row is one environment step; rows have no particular order. Tokens are
 * response tokens: those of row i are token_offsets[i] .. token_offsets[i + 1] of every token column. */
typedef struct nestor_rows {
    uint64_t rows;               /* B */
    uint64_t tokens;             /* T, equal to token_offsets[B] */
    const uint32_t *group;       /* [B] episodes of one task have one group */
    const uint32_t *episode;     /* [B] unique over all groups */
    const uint32_t *step;        /* [B] number of the step in its episode, from 0 */
    const uint32_t *sequence;    /* [B] the sequence that holds the response */
    const uint32_t *span_start;  /* [B] where in the sequence the response starts */
    const uint32_t *span_length; /* [B] number of response tokens */
    const double *reward;        /* [B] the environment's reward of the step, before any penalty */
    const double *penalty;       /* [B] what an invalid response costs, 0 for a valid one; already in token_rewards */
    const uint8_t *valid;        /* [B] 0 or 1 */
    const uint8_t *terminated;   /* [B] 0 or 1: the episode ended with this step */
    const uint8_t *truncated;    /* [B] 0 or 1: the episode was cut after this step */
    const uint8_t *anchor_data;  /* anchors end to end; null without NESTOR_NEEDS_ANCHORS */
    const uint64_t *anchor_offsets; /* [B + 1] anchor i is bytes anchor_offsets[i] .. anchor_offsets[i + 1]; or null */
    const int64_t *duplicate_of; /* [B] the row this one is a copy of, or -1; a copy counts in group statistics */
    const uint64_t *token_offsets; /* [B + 1] */
    const double *token_rewards; /* [T] episode reward, penalty and KL-in-reward on their tokens */
    const float *values;         /* [T + B] row i has one value more than tokens and starts at token_offsets[i] + i; or null */
    const float *logprobs;       /* [T] under the policy that sampled; or null */
    const float *ref_logprobs;   /* [T] under the reference; null without NESTOR_NEEDS_REFERENCE */
} nestor_rows;

/* An estimator, used by one thread at a time. It keeps no state between calls of score, unless it has
 * "nestor.estimator.state/1". */
typedef struct nestor_estimator {
    int32_t (*open)(nestor_str config, nestor_sink *sink, void **estimator);
    int32_t (*needs)(void *estimator, nestor_sink *sink, uint32_t *flags);
    /* Fills advantages [T] and returns [T]. The host has set every entry to NaN; one left so is an error. */
    int32_t (*score)(void *estimator, const nestor_rows *rows, nestor_sink *sink, float *advantages, float *returns);
    int32_t (*close)(void *estimator, nestor_sink *sink);
} nestor_estimator;

/* Extension "nestor.estimator.parts/1", since 1.1: what the advantages are made of, for people who read episodes. */
#define NESTOR_PARTS "nestor.estimator.parts/1"
typedef struct nestor_parts {
    /* Puts NESTOR_PART: lower case letters, digits, underscores. Names that viewers know: episode_advantage,
     * step_advantage, step_return, anchor_group (a number that the rows of one state share). */
    int32_t (*names)(void *estimator, nestor_sink *sink);
    /* Fills parts [names * B], column by column, for rows that score was given. The host has set every entry to NaN,
     * and takes NaN for a row that has no such part. */
    int32_t (*fill)(void *estimator, const nestor_rows *rows, nestor_sink *sink, double *parts);
} nestor_parts;

/* Extension "nestor.estimator.state/1", since 1.2: functions is a nestor_state. The host calls save
 * before the first and after each score, keeps the newest state in each checkpoint, and calls load at most once, before the
 * first score of a resumed run. */
#define NESTOR_ESTIMATOR_STATE "nestor.estimator.state/1"

/* Extension "nestor.rows.columns/1", since 1.2: columns that an estimator asks for by name. The host computes what is asked
 * for and nothing else. */
#define NESTOR_COLUMNS "nestor.rows.columns/1"

/* Kinds of entries of a column. */
#define NESTOR_BYTES 1
#define NESTOR_U8 2
#define NESTOR_U32 3
#define NESTOR_U64 4
#define NESTOR_F32 5
#define NESTOR_F64 6

/* A name fixes type and shape. B rows, T tokens as in nestor_rows.
 *
 *   name              kind   count  content
 *   next_anchor       BYTES  B      the anchor of the state after the step, also after the last step of an episode; empty
 *                                   where the environment put none
 *   success           U8     B      1 if the episode was won, else 0
 *   action            BYTES  B      the action that the environment read in the response; empty where it read none
 *   task              U64    B      number of the task in its split: the same in all iterations
 *   seed              U64    B      seed of the episode's reset
 *   split             BYTES  1      the split that the tasks are from
 *   task_type         BYTES  B      the environment's kind of task; empty where it names none
 *   iteration         U64    1      number of the iteration, from 1
 *   token             U32    T      ids of the response tokens
 *   entropy           F32    T      entropy in nats of the policy that sampled, at the temperature of sampling
 *   observation       BYTES  B      the observation that the step's prompt was made of
 *   admissible        BYTES  B      the admissible actions, separated by line feeds; empty where there is no list
 *   info.NAME         F64    B      the number, or the bool as 0 or 1, that the environment put into the info of this step
 *                                   under NAME; NaN where there is none
 *   greedy_return     F64    B      sum of the rewards of one greedy episode of the row's task and seed, which the run plays for
 *                                   each group in addition and does not train on
 *   teacher_logprobs  F32    T      log-probs under the model of the recipe's estimator.teacher, at the temperature of
 *                                   sampling; the run fails to start without one
 *   hidden.L          F32    B * E  hidden state after layer L at the last token before the response, E numbers a row. Layers
 *                                   count from 0; -1 is the last one, before the final norm
 *   hidden.L.N        F32    B * E  the mean of these over the last N tokens before the response
 *
 * A name with a question mark at its end is optional: where the run cannot give the column, its data is null. Without the
 * mark the run does not start. Rows from a file (nestor advantage) have the columns that the file has. */
typedef struct nestor_column {
    uint32_t kind;           /* NESTOR_BYTES and so on, fixed by the name */
    uint64_t count;          /* number of entries */
    const void *data;        /* count entries; with NESTOR_BYTES all entries end to end; null for an optional column that is
                                missing */
    const uint64_t *offsets; /* [count + 1] with NESTOR_BYTES: entry i is bytes offsets[i] .. offsets[i + 1]; else null */
} nestor_column;

typedef struct nestor_columns {
    /* Puts NESTOR_COLUMN once per column, after open. */
    int32_t (*names)(void *estimator, nestor_sink *sink);
    /* In place of nestor_estimator.score: columns are those that names put, in that order. */
    int32_t (*score)(void *estimator, const nestor_rows *rows, const nestor_column *columns, nestor_sink *sink,
                     float *advantages, float *returns);
    /* In place of nestor_parts.fill; null in an estimator without parts. */
    int32_t (*fill)(void *estimator, const nestor_rows *rows, const nestor_column *columns, nestor_sink *sink,
                    double *parts);
} nestor_columns;

/* What a loss asks for, as flags, beside NESTOR_NEEDS_REFERENCE. */
#define NESTOR_NEEDS_ENTROPY 8 /* by_entropy: the loss depends on the entropies */

/* The response tokens of one micro-batch of an update: whole responses, each the response of one environment step. Tokens of
 * response i are token_offsets[i] .. token_offsets[i + 1] of every column; a response has one token or more. */
typedef struct nestor_tokens {
    uint64_t responses;            /* B */
    uint64_t tokens;               /* T, equal to token_offsets[B] */
    const uint64_t *token_offsets; /* [B + 1] */
    const float *logprobs;         /* [T] under the policy that is trained, at the temperature of sampling */
    const float *detached_logprobs; /* [T] the same numbers as constants: factors that are not differentiated use these */
    const float *old_logprobs;     /* [T] under the policy before the update: a ratio is taken against these */
    const float *behaviour;        /* [T] under the engine that sampled */
    const float *ref_logprobs;     /* [T] under the reference; null without NESTOR_NEEDS_REFERENCE */
    const float *entropy;          /* [T] entropy in nats of the policy that is trained */
    const float *advantages;       /* [T] */
    uint64_t mini_batch_responses; /* responses of the whole mini-batch, over all micro-batches and ranks */
    uint64_t mini_batch_tokens;    /* its response tokens */
    uint64_t most_response_tokens; /* rollout.max_response_tokens of the recipe */
    uint64_t iteration;            /* number of the iteration, from 1 */
    uint64_t iterations;           /* iterations of the run */
} nestor_tokens;

/* Since 1.5: the policy loss, used by one thread at a time. Losses and derivatives depend on the arguments alone.
 *
 * The loss of a token may depend on all tokens of its own response, and on no other response. The host weighs the tokens of a
 * response alike (update.aggregation), adds up, and adds the recipe's KL loss and entropy bonus. With l_k the loss of token k
 * and x_j the log-prob of token j, by_logprob[j] is the derivative by x_j of the sum of l_k over the response of j, with all
 * other columns held; by_entropy[j] is that by the entropy of token j. */
typedef struct nestor_loss {
    int32_t (*open)(nestor_str config, nestor_sink *sink, void **loss);
    int32_t (*needs)(void *loss, nestor_sink *sink, uint32_t *flags);
    /* Fills losses [T], by_logprob [T] and, unless it is null, by_entropy [T]. The host has set every entry to NaN; one left so
     * is an error. by_entropy is null without NESTOR_NEEDS_ENTROPY. May put NESTOR_METRICS with sums over the tokens, the same
     * names in every call. */
    int32_t (*compute)(void *loss, const nestor_tokens *tokens, nestor_sink *sink, double *losses, double *by_logprob,
                       double *by_entropy);
    int32_t (*close)(void *loss, nestor_sink *sink);
} nestor_loss;

/* Kinds of components. */
#define NESTOR_ENVIRONMENT 1 /* functions is a nestor_environment */
#define NESTOR_ESTIMATOR 2   /* functions is a nestor_estimator */
#define NESTOR_LOSS 3        /* since 1.5: functions is a nestor_loss */

typedef struct nestor_component {
    uint32_t kind;
    nestor_str id;            /* lower case letters, digits, underscores; unique among the components of its kind */
    nestor_str doc;           /* one line */
    nestor_str config_schema; /* JSON schema of the config object */
    const void *functions;    /* table of functions by kind; none of them null */
    /* A table of functions for an optional ability, null where the component lacks it. May itself be null. */
    const void *(*get_extension)(nestor_str id);
} nestor_component;

typedef struct nestor_plugin {
    uint64_t magic;     /* NESTOR_MAGIC */
    uint32_t abi_major; /* NESTOR_ABI_MAJOR */
    uint32_t abi_minor; /* NESTOR_LEAST_MINOR */
    /* sizeof of the structs as the plugin's compiler saw them; use NESTOR_HEAD. */
    uint32_t size_plugin, size_component, size_str, size_sink, size_step, size_environment, size_rows, size_estimator;
    uint64_t component_count;
    const nestor_component *components;
} nestor_plugin;

/* The first fields of a description, in order. */
#define NESTOR_HEAD                                                                                                    \
    NESTOR_MAGIC, NESTOR_ABI_MAJOR, NESTOR_LEAST_MINOR, sizeof(nestor_plugin), sizeof(nestor_component),                 \
        sizeof(nestor_str), sizeof(nestor_sink), sizeof(nestor_step), sizeof(nestor_environment), sizeof(nestor_rows), \
        sizeof(nestor_estimator)

/* The one exported function. */
#if defined(_WIN32)
#define NESTOR_EXPORT __declspec(dllexport)
#elif defined(__GNUC__)
#define NESTOR_EXPORT __attribute__((visibility("default")))
#else
#define NESTOR_EXPORT
#endif
NESTOR_EXPORT const nestor_plugin *nestor_plugin_entry(void);

#ifdef __cplusplus
}
#endif
#endif
