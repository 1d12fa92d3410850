/* The functions of fused.h and linear.h, compiled as the including file asks, as one table: ROUTINES for the
 * instructions that NEEDS stands for. */
#include "routines.h"

#if NEEDS
#include "fused.h"
#include "linear.h"

/* Pointers to elements are passed as pointers to void are. */
#define ENTRY(name) .name = (void *)name
const struct Routines ROUTINES = {
    .compiled = 1,
#ifdef HAS_LINEAR
    .panel_width = PANEL, ENTRY(linear),
#endif
    ENTRY(add_norm), ENTRY(rotate), ENTRY(silu_mul), ENTRY(attend), ENTRY(attend_tiles),
};
#else
const struct Routines ROUTINES = {0};
#endif
