/* The C interface of libcadre_group, with which a program that trains a model with a loop of its
 * own takes part in a run as a group, or as one rank of a group.
 *
 *   cadre_group* group = cadre_group_open(&options);
 *   cadre_group_add_parameter(group, "fc.weight", shape, 2, 1, values);     for each parameter
 *   cadre_group_join(group);
 *   for (;;) switch (cadre_group_next(group, timeout)) {
 *     case CADRE_FETCH: copy the model's values to the registered memory; break;
 *     case CADRE_STORE: copy them from the registered memory to the model; break;
 *     case CADRE_TRAIN: do { one step } while (!cadre_group_step(group)); break;
 *     case CADRE_EVALUATE: evaluate the model; cadre_group_report_evaluation(group, ...); break;
 *     case CADRE_WAIT:  the timeout has passed; break;
 *     case CADRE_ENDED: the model is that of the run's last version; return;
 *     case CADRE_ERROR: cadre_group_error(group) has the reason; return;
 *   }
 *
 * Failures. If the coordinator, an aggregator or another rank fails, cadre_group_next waits, and
 * the group continues from the newest version: the next CADRE_STORE overwrites the steps since
 * then, which cadre_group_get_state reports as discarded. If the group itself cannot continue,
 * because a value is not finite or its parameters are not those of the run, CADRE_ERROR follows,
 * and the other groups continue without it.
 *
 * Threads. A group is used by one thread at a time, except for cadre_group_leave, cadre_group_alive
 * and cadre_group_interrupt, which any thread and signal handlers' threads may call. The library
 * has threads of its own; they read and write the registered memory only while a thread is in
 * cadre_group_next. A process that uses a group must not fork without exec.
 *
 * Memory. If it is exhausted, functions that register, join or wait return CADRE_ERROR; in the
 * others, and in the library's threads, the process ends.
 *
 * Ownership. The caller owns all memory that it passes: strings and shapes may be freed after the
 * call, registered memory must outlive the group. Strings that are returned belong to the group and
 * are valid until the next call with it. */
#ifndef CADRE_GROUP_H_
#define CADRE_GROUP_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CADRE_API __attribute__((visibility("default")))

/* Raised when a function or structure changes incompatibly. */
#define CADRE_GROUP_ABI 3
CADRE_API int32_t cadre_group_abi(void);

typedef struct cadre_group cadre_group;

typedef struct {
  /* host:port, or several, separated by commas, of which one leads. */
  const char* coordinator;
  /* Folder with ca.crt, tls.crt and tls.key of a worker, or null: then `insecure` must be 1. */
  const char* tls;
  int32_t insecure;
  /* Id or name of the run. */
  const char* run;
  /* Equal for all ranks of the program, and different at each start. */
  const char* program;
  /* Name of this process for display, [a-z0-9._-]{1,63}. Null: certificate, host and process id. */
  const char* name;
  uint32_t ranks;
  uint32_t rank;
  /* Address for the other ranks; port 0 selects a free port. Null: 127.0.0.1:0. */
  const char* listen;
  /* The address that is sent to them; null: `listen` with the selected port. */
  const char* advertise;
  /* Limit for reaching the coordinator. */
  double dial_seconds;
  /* Test samples that the program evaluates, as in the model of the run; 0: it does not evaluate.
   */
  uint64_t test_samples;
  /* How long the program may take to leave when the coordinator drains it; 0: no limit. */
  double notice_seconds;
} cadre_group_options;

enum {
  CADRE_ERROR = -1,
  CADRE_WAIT = 0,
  CADRE_FETCH = 1,
  CADRE_STORE = 2,
  CADRE_TRAIN = 3,
  CADRE_ENDED = 4,
  CADRE_EVALUATE = 5,
};

typedef struct {
  /* The version from which the group trains, and the digest of its values. */
  uint32_t version;
  uint64_t digest;
  /* Groups whose contributions the version contains, and whether this group's is among them. */
  uint32_t participants;
  int32_t included;
  /* Steps since the start of the run, of this boundary, and of the whole run (0: unknown). */
  uint32_t step;
  uint32_t next_boundary;
  uint32_t total_steps;
  /* This group among the groups of the run, and its samples of a step. */
  uint32_t group;
  uint32_t groups;
  uint32_t batch;
  /* Position of the first sample of the next step in the endless sequence of the run's samples. */
  uint64_t sample_position;
  /* Steps of this group that no version contains, because its generation ended or it was late. */
  uint64_t discarded_steps;
  /* Whether the coordinator can be reached. */
  int32_t connected;
  /* After CADRE_EVALUATE: the test samples [begin, end) to evaluate. */
  uint64_t evaluate_begin;
  uint64_t evaluate_end;
  /* Whether the coordinator has drained the program: CADRE_ENDED then follows before the run's end.
   */
  int32_t drained;
} cadre_group_state;

/* Never null; an error is returned by the functions that follow. */
CADRE_API cadre_group* cadre_group_open(const cadre_group_options* options);

/* Registers the next parameter in the order of the run. `values`: all of its elements, row-major.
 * Null: this rank has only the parts that cadre_group_add_part registers. All ranks together have
 * every element. Elements that several ranks have must be equal on them; these ranks divide their
 * exchange. Returns 0, or CADRE_ERROR. */
CADRE_API int32_t cadre_group_add_parameter(cadre_group* group, const char* name,
                                            const uint64_t* shape, int32_t dimensions,
                                            int32_t trained, float* values);
/* Registers a parameter that is not exchanged, and a digest of its values, of the program's choice:
 * all programs of the run must have the same. */
CADRE_API int32_t cadre_group_add_frozen(cadre_group* group, const char* name,
                                         const uint64_t* shape, int32_t dimensions,
                                         const char* digest);
/* Registers elements [begin, end) of the parameter that was registered last. */
CADRE_API int32_t cadre_group_add_part(cadre_group* group, uint64_t begin, uint64_t end,
                                       float* values);

/* Without joining, reads the newest version of a run (id or name), which may have ended, into the
 * registered memory. The parameters must be those of the run. Needs host memory for the whole
 * version meanwhile. Then cadre_group_get_state has its version, digest and step, and
 * cadre_group_run the id of the run. Returns 0, or CADRE_ERROR; the memory is unchanged after an
 * error. */
CADRE_API int32_t cadre_group_load(cadre_group* group, const char* run);

/* Joins the coordinator. Returns 0, or CADRE_ERROR. */
CADRE_API int32_t cadre_group_join(cadre_group* group);

/* Reports that what the last call has returned is done, and waits for what is next, at most this
 * long. After CADRE_WAIT, the wait continues with the next call. */
CADRE_API int32_t cadre_group_next(cadre_group* group, double timeout_seconds);

/* One step is done. Returns 1 if cadre_group_next must follow: at a boundary, or because the
 * group's generation has ended. Takes no lock and never blocks. */
CADRE_API int32_t cadre_group_step(cadre_group* group);
/* Training loss of one or more steps, for status and history; optional. The mean of those of rank 0
 * since the last boundary counts. What is reported of a step precedes its cadre_group_step, which
 * may be the last one before a boundary. */
CADRE_API void cadre_group_report_loss(cadre_group* group, double loss);
/* A metric of one or more steps, for status and history; optional. The mean of those of rank 0
 * since the last boundary counts; of "rate", the learning rate, the last value. `name`: 1 to 64 of
 * a-z, 0-9, '_', '.', '/', '-'; a group has at most 32. Returns 0, or CADRE_ERROR: the error, like
 * every one, ends the group, and names the metric. Of metrics and losses, values that are not
 * finite do not count; they are logged at the next boundary, once for each name. */
CADRE_API int32_t cadre_group_report_metric(cadre_group* group, const char* name, double value);
/* Tokens that one or more steps have trained; optional. Those of rank 0 count, so they are the
 * tokens of all ranks of the group. Returns 0, or CADRE_ERROR for more than 2^48. */
CADRE_API int32_t cadre_group_report_tokens(cadre_group* group, uint64_t tokens);
/* Result of CADRE_EVALUATE, before the next call of cadre_group_next: the correctly predicted
 * labels of all labels, one or more per sample, and the sum of the loss over the labels. All ranks
 * evaluate the same samples and must report; the result of rank 0 counts. */
CADRE_API void cadre_group_report_evaluation(cadre_group* group, uint64_t correct, uint64_t labels,
                                             double loss_sum);
/* The program works although no step ends, for example in an evaluation. */
CADRE_API void cadre_group_alive(cadre_group* group);

CADRE_API void cadre_group_get_state(const cadre_group* group, cadre_group_state* state);
/* The run's id; empty before the first CADRE_TRAIN, unless a version was loaded. */
CADRE_API const char* cadre_group_run(const cadre_group* group);
/* The last error, or why the run has ended, or else why the coordinator is not connected, or else
 * what the program waits for before its group is formed; empty if there is none of these. */
CADRE_API const char* cadre_group_error(const cadre_group* group);

/* Ends waiting calls of cadre_group_next with CADRE_WAIT. */
CADRE_API void cadre_group_interrupt(cadre_group* group);
/* Asks to leave within this time; a negative one has no limit. The group contributes at its next
 * boundary if it reaches that within half of the time, otherwise after the step that it is in (in a
 * program of several ranks, after a few seconds), and adopts the version if it exists in time. Then
 * cadre_group_next returns CADRE_ENDED; the contribution counts in any case. */
CADRE_API void cadre_group_leave(cadre_group* group, double within_seconds);
/* The program has ended its loop before the end of the run. Called by the thread that trains,
 * between two steps, by all ranks after the same step; cadre_group_next must follow until it
 * returns CADRE_ENDED, or CADRE_ERROR if the group has ended before its ranks agreed on that step.
 * The group contributes the steps since its last contribution, if there are any, and adopts the
 * version. Returns 0, or CADRE_ERROR. */
CADRE_API int32_t cadre_group_finish(cadre_group* group);
/* Leaves now and frees the group. Steps since the last version are lost, unless the group was left
 * or finished as above. */
CADRE_API void cadre_group_close(cadre_group* group, const char* reason);

/* ---- The coordinator's services, without a group. */

typedef struct cadre_client cadre_client;

/* Never null. `tls`: folder of an operator's or viewer's certificate, or null with `insecure`. */
CADRE_API cadre_client* cadre_client_open(const char* coordinator, const char* tls,
                                          int32_t insecure);
/* Returns JSON (messages of control.proto, field names as there), or null: cadre_client_error.
 * `spec`: a run file's text, or a RunSpec as JSON if it begins with '{'. `join_existing`: 1: as in
 * SubmitRequest; 2: with `join_ended`, too. */
CADRE_API const char* cadre_client_submit(cadre_client* client, const char* spec,
                                          int32_t join_existing);
/* Returns the RunSpec of a run file as JSON, without the defaults, or null. Does not check the run.
 * `name`: of the file, for errors. */
CADRE_API const char* cadre_client_parse(cadre_client* client, const char* name, const char* text);
/* `run`: an id or a name, or empty for all runs. */
CADRE_API const char* cadre_client_status(cadre_client* client, const char* run);
/* Entries of the run's history with higher numbers than `after` (HistoryReply). */
CADRE_API const char* cadre_client_history(cadre_client* client, const char* run, uint64_t after);
/* Writes the newest version of the run to a safetensors file; returns LocateReply without the spec.
 * `type`: of the values in the file, fp32, bf16 or fp16; null: fp32. */
CADRE_API const char* cadre_client_pull(cadre_client* client, const char* run, const char* path,
                                        const char* type);
CADRE_API const char* cadre_client_stop(cadre_client* client, const char* run, const char* reason);
CADRE_API const char* cadre_client_error(const cadre_client* client);
CADRE_API void cadre_client_close(cadre_client* client);

#ifdef __cplusplus
}
#endif

#endif
