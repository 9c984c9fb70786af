"""The program that the SDK v3 runs in every container. Only this file is uploaded; smdp is in the image."""

from __future__ import annotations

import sys

try:
    from smdp.sagemaker.driver_main import main
except ImportError as error:
    text = (
        f"[smdp] the container cannot import smdp.sagemaker ({error}); install smdp in the image, or add it"
        " to the file that SourceCode(requirements=...) names"
    )
    try:
        with open("/opt/ml/output/failure", "w") as file:
            file.write(text)
    except OSError:
        pass
    sys.exit(text)

main()
