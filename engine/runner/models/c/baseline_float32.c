#define ROUTINES baseline_float32
#define NEEDS 1
#include "define.h"
