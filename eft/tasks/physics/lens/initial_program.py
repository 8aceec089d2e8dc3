# EVOLVE-BLOCK-START
FRONT = 0.01
MIDDLE = -0.01
BACK = -0.002
CROWN = 4.0
FLINT = 3.0


def run():
    """Two cemented lenses: curvatures of 3 surfaces (1/mm) and 2 thicknesses (mm)."""
    curvatures = []
    curvatures.append(FRONT)
    curvatures.append(MIDDLE)
    curvatures.append(BACK)
    thicknesses = [CROWN, FLINT]
    return [curvatures, thicknesses]
# EVOLVE-BLOCK-END
