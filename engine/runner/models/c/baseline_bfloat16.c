#define BF16
#define ROUTINES baseline_bfloat16
#define NEEDS 1
#include "define.h"
